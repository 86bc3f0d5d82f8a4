"""Test-time augmentation: the mean answer for six views of each picture. An option, and counted apart."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

NUM_VIEWS = 6


def six_views(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Logits (n, num_classes) for (n, 3, h, w): the picture and two shifts by a pixel, each also mirrored.

    The unshifted pair counts half, the shifts one quarter a pair, as in airbench
    (https://github.com/KellerJordan/cifar10-airbench).
    """
    height, width = images.shape[2:]
    wide = F.pad(images, (1, 1, 1, 1), "reflect")
    shifts = wide[:, :, :height, :width], wide[:, :, 2:, 2:]

    def both_ways(x: Tensor) -> Tensor:
        return (model(x) + model(x.flip(-1))) / 2

    return both_ways(images) / 2 + (both_ways(shifts[0]) + both_ways(shifts[1])) / 4
