"""Shift, flip and cutout of a whole batch at once, on whatever device the pictures live.

The draws are made for a whole epoch from one seed, one for each position in the epoch's order. They do not depend
on the number of ranks or on where an epoch was resumed, so every mode trains on the very same pictures.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

PAD = 4  # pixels of black border to each side, as torchvision's RandomCrop(32, padding=4)
SMALL_PAD = 2  # pixels of mirrored border for shift_flip
HOLE = 8  # side of the square that cutout blanks
LAST_EPOCH = 10_000  # none has this number: epochs count from 0


@dataclass(frozen=True)
class EpochPlan:
    """Everything random about one epoch. Each tensor has one row a picture, in the order of training."""

    order: Tensor  # (n,) int64: which picture
    top: Tensor  # (n,) int64 in 0..2 * pad: first row of the crop in the padded picture
    left: Tensor  # (n,) int64
    flip: Tensor  # (n,) bool
    hole: Tensor  # (n, 2) int64: centre of the cutout

    def rows(self, start: int, stop: int, rank: int = 0, world_size: int = 1) -> "EpochPlan":
        """The share of `rank` in the global batch start..stop: every world_size-th picture."""
        pick = slice(start + rank, stop, world_size)
        return EpochPlan(self.order[pick], self.top[pick], self.left[pick], self.flip[pick], self.hole[pick])

    def to(self, device: torch.device) -> "EpochPlan":
        return EpochPlan(
            *(t.to(device, non_blocking=True) for t in (self.order, self.top, self.left, self.flip, self.hole))
        )


def pad_of(augment: str) -> int:
    """Pixels of border that the pictures need."""
    return SMALL_PAD if augment == "shift_flip" else PAD


def plan_epoch(num_images: int, seed: int, epoch: int, augment: str) -> EpochPlan:
    """Shuffle `num_images` and draw their augmentation; the same for the same arguments.

    shift_flip mirrors half of the pictures, and in the next epoch the other half: in two epochs each is seen both
    ways. Source: K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv:2404.00498).
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(num_images, generator=generator)
    if augment == "none":
        still = torch.full((num_images,), PAD)
        return EpochPlan(order, still, still, torch.zeros(num_images, dtype=torch.bool), still.new_zeros(num_images, 2))
    shift = torch.randint(0, 2 * pad_of(augment) + 1, (2, num_images), generator=generator)
    flip = torch.rand(num_images, generator=generator) < 0.5
    if augment == "shift_flip":
        once = torch.Generator().manual_seed(seed * 1_000_003 + LAST_EPOCH)
        flip = (torch.rand(num_images, generator=once) < 0.5)[order] ^ (epoch % 2 == 1)
    hole = torch.randint(0, 32, (num_images, 2), generator=generator)
    return EpochPlan(order, shift[0], shift[1], flip, hole)


def pad(images: Tensor, augment: str) -> Tensor:
    """(n, h, w, 3) uint8 -> (n * (h + 2 pad) * (w + 2 pad), 3): one row a pixel, border included.

    The border is black; for shift_flip it mirrors the picture without repeating its outermost pixels.
    """
    border = pad_of(augment)
    n, height, width, channels = images.shape
    if augment == "shift_flip":
        rows, columns = (_mirrored(side, border, images.device) for side in (height, width))
        table = images.index_select(1, rows).index_select(2, columns)
    else:
        table = images.new_zeros(n, height + 2 * border, width + 2 * border, channels)
        table[:, border:-border, border:-border] = images
    return table.view(-1, channels)


def _mirrored(side: int, border: int, device: torch.device) -> Tensor:
    """Which of `side` lines stands at each place of the padded picture."""
    lines = torch.arange(-border, side + border, device=device).abs()
    return torch.minimum(lines, 2 * (side - 1) - lines)


def crop_flip(pixels: Tensor, plan: EpochPlan, border: int = PAD, size: int = 32) -> Tensor:
    """Cut (b, size, size, 3) uint8 out of a `pad`ded table: one gather, the mirror folded into its column index."""
    side = size + 2 * border
    steps = torch.arange(size, device=pixels.device)
    columns = torch.where(plan.flip[:, None], size - 1 - steps, steps) + plan.left[:, None]
    rows = (plan.order[:, None] * side + plan.top[:, None] + steps) * side
    index = rows[:, :, None] + columns[:, None, :]
    return pixels.index_select(0, index.flatten()).view(-1, size, size, pixels.shape[1])


def cutout(images: Tensor, plan: EpochPlan) -> Tensor:
    """Set an 8x8 square of each normalised (b, 3, h, w) picture to 0, the mean colour; squares may hang over.

    In place: it keeps channels_last, which a masked copy would lose.
    """
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device) - plan.hole[:, :1] + HOLE // 2
    columns = torch.arange(width, device=images.device) - plan.hole[:, 1:] + HOLE // 2
    inside = ((rows >= 0) & (rows < HOLE))[:, :, None] & ((columns >= 0) & (columns < HOLE))[:, None, :]
    return images.masked_fill_(inside[:, None], 0)
