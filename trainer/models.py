"""The networks. Each takes (n, 3, 32, 32) normalised pictures and gives (n, num_classes) logits."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.fast import Fast


class Tutorial(nn.Module):
    """Two convolutions and two dense layers, 8.5 M parameters for ten classes.

    The article's network as its text means it: its listing pools once, which leaves 16x16 maps in front of a dense
    layer made for 8x8. The missing pool after the first convolution is restored. Pooling comes before the ReLU:
    the same function and gradient, on a quarter of the values.
    """

    def __init__(self, num_classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1)
        self.conv2 = nn.Conv2d(64, 128, 3, padding=1)
        self.fc1 = nn.Linear(128 * 8 * 8, 1024)
        self.fc2 = nn.Linear(1024, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


class ConvNorm(nn.Module):
    """3x3 convolution, BatchNorm, optional 2x2 pool, ReLU."""

    def __init__(self, inputs: int, outputs: int, pool: bool = False):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return F.relu(F.max_pool2d(x, 2) if self.pool else x)


class Residual(nn.Module):
    """Two ConvNorm blocks beside a direct path."""

    def __init__(self, channels: int):
        super().__init__()
        self.block = nn.Sequential(ConvNorm(channels, channels), ConvNorm(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class ResNet9(nn.Module):
    """The nine-layer residual network of David Page's CIFAR-10 series, 6.6 M parameters.

    Source of the shape: https://github.com/davidcpage/cifar10-fast (channels 64-128-256-512, residual branches
    after the first and third, logits scaled by 1/8).
    """

    def __init__(self, num_classes: int):
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm(3, 64),
            ConvNorm(64, 128, pool=True),
            Residual(128),
            ConvNorm(128, 256, pool=True),
            ConvNorm(256, 512, pool=True),
            Residual(512),
        )
        self.fc = nn.Linear(512, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.features(x), 4).flatten(1)
        return self.fc(x) * 0.125


def _resnet18(num_classes: int) -> nn.Module:
    """torchvision's ResNet-18 with the stem for small pictures: 3x3 without stride, no first pool."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=num_classes)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model


MODELS = {"tutorial": Tutorial, "fast": Fast, "resnet9": ResNet9, "resnet18": _resnet18}
FIT_PICTURES = 2_000  # as many as `fit_to` needs to know a data set by


def build_model(name: str, num_classes: int) -> nn.Module:
    """A freshly initialised network on the CPU, in channels_last. Draws from torch's global generator."""
    model: nn.Module = MODELS[name](num_classes)
    return model.to(memory_format=torch.channels_last)


def fit_to(model: nn.Module, images: Tensor) -> None:
    """Give a fresh network what it takes from the data before the first step, if anything.

    images: `FIT_PICTURES` or fewer of the training pictures, normalised, (n, 3, h, w).
    """
    if isinstance(model, Fast):
        model.fit_to(images)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def gradient_sizes(model: nn.Module) -> dict[str, int]:
    """Bytes of the gradients that a step computes, by layer (the module that holds the weights), in their order."""
    sizes: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            layer = name.rpartition(".")[0]
            sizes[layer] = sizes.get(layer, 0) + parameter.numel() * parameter.element_size()
    return sizes
