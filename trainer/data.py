"""Pictures as tensors that live on the device: batches are cut out of them, no loader process is needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.augment import EpochPlan, crop_flip, cutout, pad, pad_of

EVAL_BATCH = 500


@dataclass(frozen=True)
class Batch:
    """One rank's share of a global batch."""

    images: Tensor  # (b, 3, 32, 32) normalised, channels_last
    labels: Tensor  # (b,) int64
    weight: Tensor  # (b,) 1 for each real picture; 0 for the stand-in of a rank without a share
    global_size: int  # pictures of all ranks together


def to_tensor(array: np.ndarray) -> Tensor:
    """A copy as a tensor: the arrays of a prepared data set are read-only maps of files."""
    return torch.from_numpy(np.array(array))


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(b, h, w, 3) uint8 -> (b, 3, h, w) of the default float type, channels_last: (x / 255 - mean) / std."""
    dtype = torch.get_default_dtype()
    scale = torch.tensor([1 / (255 * s) for s in std], dtype=dtype, device=images.device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=dtype, device=images.device)
    return images.to(dtype).mul_(scale).add_(shift).permute(0, 3, 1, 2)


class TrainSet:
    """The training pictures on `device`, padded once. images (n, 32, 32, 3) uint8, labels (n,)."""

    def __init__(self, images: Tensor, labels: Tensor, normalisation: dict, augment: str, device: torch.device):
        self.pixels = pad(images.to(device), augment)
        self.labels = labels.to(device)
        self.normalisation = normalisation
        self.augment = augment
        self.device = device

    def __len__(self) -> int:
        return len(self.labels)

    def batches(
        self, plan: EpochPlan, batch_size: int, first: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """This rank's shares of the global batches first, first + 1, ... The last one may be smaller."""
        plan = plan.to(self.device)
        for start in range(first * batch_size, len(self), batch_size):
            stop = min(start + batch_size, len(self))
            share = plan.rows(start, stop, rank, world_size)
            real = len(share.order) > 0
            if not real:  # the ranks must run the same collectives, so one picture stands in and counts nothing
                share = plan.rows(start, start + 1)
            images = normalise(crop_flip(self.pixels, share, pad_of(self.augment)), **self.normalisation)
            if self.augment == "crop_flip_cutout":
                images = cutout(images, share)
            weight = torch.full((len(share.order),), float(real), device=self.device)
            yield Batch(images, self.labels[share.order], weight, stop - start)


class TestSet:
    """One rank's unpadded share of the test pictures: every world_size-th, so that each is counted once."""

    __test__ = False  # not a test, whatever pytest thinks of the name

    def __init__(
        self, images: Tensor, labels: Tensor, normalisation: dict, device: torch.device, rank: int, world_size: int
    ):
        self.images = images[rank::world_size].contiguous().to(device)
        self.labels = labels[rank::world_size].contiguous().to(device)
        self.normalisation = normalisation
        self.batch_size = EVAL_BATCH

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(b, 3, 32, 32) normalised pictures and their (b,) labels."""
        for images, labels in zip(self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True):
            yield normalise(images, **self.normalisation), labels
