"""A small network that learns fast: whitened input, identity beginnings, BatchNorm that only shifts.

Keller Jordan's airbench94 (https://github.com/KellerJordan/cifar10-airbench, arXiv:2404.00498) reports 94.01 % on
CIFAR-10 as the mean of 1,000 runs of 9.9 epochs; it stands on David Page's "How to train your ResNet"
(https://github.com/davidcpage/cifar10-fast) and on Tysam's hlb-CIFAR10. Kept, in our own code: a frozen 2x2 first layer
that whitens the pictures, widths 64-256-256, identity (dirac) initialisation, GELU, BatchNorm without scale, logits
divided by 9; and, as settings of the ordinary loop, label smoothing, the triangular schedule, the higher learning
rate of BatchNorm's biases, lookahead, alternating flips and six views when predicting. Left: weights in half
precision (autocast keeps them in fp32, so that every mode and device trains the same), and a schedule that begins at
20 % and ends at 7 % of the peak (ours begins and ends near 0).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WHITENED = 3 * 2 * 2  # values of one 2x2 patch, and as many directions; each is used with both signs
SMALLEST_VARIANCE = 5e-4  # added to each direction's variance, so that noise is not blown up


class ShiftNorm(nn.BatchNorm2d):
    """BatchNorm that shifts and does not scale; its running statistics follow the batches quickly."""

    def __init__(self, channels: int):
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad_(False)


def _identity_conv(inputs: int, outputs: int) -> nn.Conv2d:
    """3x3; the first `inputs` of its channels begin as copies of the input."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(conv.weight.data[:inputs])
    return conv


class Stage(nn.Module):
    """conv, pool, norm, GELU, conv, norm, GELU: half the side."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv1 = _identity_conv(inputs, outputs)
        self.norm1 = ShiftNorm(outputs)
        self.conv2 = _identity_conv(outputs, outputs)
        self.norm2 = ShiftNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Fast(nn.Module):
    """1.97 M parameters for ten classes. `fit_to` has to see pictures of the data set before the first step."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.whiten = nn.Conv2d(3, 2 * WHITENED, 2, bias=False)
        self.whiten.weight.requires_grad_(False)
        self.stages = nn.Sequential(Stage(2 * WHITENED, 64), Stage(64, 256), Stage(256, 256))
        self.fc = nn.Linear(256, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.gelu(self.whiten(x)))  # (n, 256, 3, 3)
        return self.fc(F.max_pool2d(x, 3).flatten(1)) / 9

    @torch.no_grad()
    def fit_to(self, images: Tensor) -> None:
        """Set the first layer to the principal directions of the 2x2 patches in (n, 3, h, w), scaled to variance 1."""
        patches = F.unfold(images, 2).movedim(1, 2).flatten(0, 1)  # (n * positions, 12)
        variances, directions = torch.linalg.eigh((patches.T @ patches).double() / len(patches))
        scaled = (directions / (variances + SMALLEST_VARIANCE).sqrt()).T.flip(0)  # a direction a row, the largest first
        self.whiten.weight.copy_(torch.cat([scaled, -scaled]).view_as(self.whiten.weight))
