"""Crop, flip and normalisation are torchvision's own, for the same draws; the draws depend on seed and epoch only."""

import pytest
import torch
from torchvision import transforms
from torchvision.transforms.v2 import functional as reference

from trainer.augment import HOLE, PAD, SMALL_PAD, EpochPlan, crop_flip, cutout, pad, plan_epoch
from trainer.config import choices
from trainer.data import normalise

MEAN, STD = [0.49, 0.48, 0.45], [0.25, 0.24, 0.26]


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(0, 256, (40, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def same(a: EpochPlan, b: EpochPlan) -> bool:
    return all(torch.equal(vars(a)[name], vars(b)[name]) for name in vars(a))


def plan_of(top: int, left: int, flip: bool, hole: tuple[int, int] = (0, 0)) -> EpochPlan:
    return EpochPlan(*map(torch.tensor, ([0], [top], [left], [flip], [hole])))


def test_a_whole_batch_equals_torchvision_picture_by_picture(images: torch.Tensor):
    plan = plan_epoch(len(images), seed=3, epoch=2, augment="crop_flip")
    ours = normalise(crop_flip(pad(images, "crop_flip"), plan), MEAN, STD)
    for i, (which, top, left, flip) in enumerate(zip(plan.order, plan.top, plan.left, plan.flip, strict=True)):
        picture = reference.pad(images[which].permute(2, 0, 1), [PAD])
        picture = reference.crop(picture, int(top), int(left), 32, 32)
        picture = reference.horizontal_flip(picture) if flip else picture
        expected = reference.normalize(reference.to_dtype(picture, torch.float32, scale=True), MEAN, STD)
        torch.testing.assert_close(ours[i], expected, rtol=0, atol=1e-6)


def test_every_crop_of_torchvisions_own_transform_is_one_of_ours(images: torch.Tensor):
    picture = images[0].permute(2, 0, 1)
    crop = transforms.RandomCrop(32, padding=PAD)
    table = pad(images, "crop_flip")
    ours = {(top, left): crop_flip(table, plan_of(top, left, False))[0] for top in range(9) for left in range(9)}
    for _ in range(30):
        theirs = crop(picture).permute(1, 2, 0)
        assert sum(torch.equal(theirs, one) for one in ours.values()) == 1


def test_a_still_plan_gives_the_pictures_as_they_are_in_a_shuffled_order(images: torch.Tensor):
    plan = plan_epoch(len(images), seed=0, epoch=0, augment="none")
    assert torch.equal(crop_flip(pad(images, "none"), plan), images[plan.order])
    assert not torch.equal(plan.order, torch.arange(len(images)))


def test_small_shifts_look_into_a_mirrored_border_as_torchvisions_do(images: torch.Tensor):
    plan = plan_epoch(len(images), seed=3, epoch=2, augment="shift_flip")
    ours = crop_flip(pad(images, "shift_flip"), plan, SMALL_PAD)
    for i, (which, top, left, flip) in enumerate(zip(plan.order, plan.top, plan.left, plan.flip, strict=True)):
        picture = reference.pad(images[which].permute(2, 0, 1), [SMALL_PAD], padding_mode="reflect")
        picture = reference.crop(picture, int(top), int(left), 32, 32)
        picture = reference.horizontal_flip(picture) if flip else picture
        assert torch.equal(ours[i], picture.permute(1, 2, 0))


def test_small_shifts_cover_their_whole_range():
    plan = plan_epoch(1000, seed=0, epoch=0, augment="shift_flip")
    for shift in (plan.top, plan.left):
        assert shift.unique().tolist() == list(range(2 * SMALL_PAD + 1))


def test_alternating_flips_show_each_picture_both_ways_in_any_two_epochs():
    def flips(seed: int, epoch: int) -> torch.Tensor:
        plan = plan_epoch(1000, seed, epoch, "shift_flip")
        return plan.flip[plan.order.argsort()]

    assert 0.4 < flips(0, 0).double().mean() < 0.6
    for epoch in range(3):
        assert torch.equal(flips(0, epoch), ~flips(0, epoch + 1))
    assert not torch.equal(flips(0, 0), flips(1, 0))


@pytest.mark.parametrize("augment", choices("augment"))
def test_an_epoch_takes_every_picture_once(augment: str):
    plan = plan_epoch(1000, seed=5, epoch=7, augment=augment)
    assert torch.equal(plan.order.sort().values, torch.arange(1000))


def test_the_draws_cover_their_whole_range_evenly():
    plan = plan_epoch(20_000, seed=0, epoch=0, augment="crop_flip")
    for shift in (plan.top, plan.left):
        counts = torch.bincount(shift, minlength=9)
        assert len(counts) == 9
        assert counts.min() > 0.9 * 20_000 / 9
    assert 0.48 < plan.flip.double().mean() < 0.52


def test_the_same_seed_and_epoch_give_the_same_plan_and_others_another():
    plan = plan_epoch(1000, seed=5, epoch=7, augment="crop_flip")
    assert same(plan, plan_epoch(1000, seed=5, epoch=7, augment="crop_flip"))
    for seed, epoch in ((5, 8), (6, 7), (7, 5)):
        other = plan_epoch(1000, seed=seed, epoch=epoch, augment="crop_flip")
        assert not torch.equal(plan.order, other.order)
        assert not torch.equal(plan.flip, other.flip)


def test_a_plan_neither_uses_nor_moves_the_global_generator():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = plan_epoch(100, seed=0, epoch=0, augment="crop_flip")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(first, plan_epoch(100, seed=0, epoch=0, augment="crop_flip"))


def test_the_largest_seed_and_epoch_are_valid():
    assert len(plan_epoch(10, seed=2**31 - 1, epoch=10_000, augment="crop_flip").order) == 10


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_the_shares_of_the_ranks_are_disjoint_and_together_the_global_batch(world_size: int):
    plan = plan_epoch(100, seed=0, epoch=0, augment="crop_flip")
    for start, stop in ((0, 42), (42, 84), (84, 100), (99, 100)):
        shares = [plan.rows(start, stop, rank, world_size) for rank in range(world_size)]
        together = torch.cat([share.order for share in shares])
        assert torch.equal(together.sort().values, plan.order[start:stop].sort().values)
        sizes = [len(share.order) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def test_a_picture_keeps_its_draws_on_any_number_of_ranks():
    plan = plan_epoch(12, seed=0, epoch=0, augment="crop_flip_cutout")
    whole = {int(which): i for i, which in enumerate(plan.order)}
    for world_size in (2, 3, 4):
        for rank in range(world_size):
            share = plan.rows(0, 12, rank, world_size)
            places = [whole[int(which)] for which in share.order]
            assert same(share, EpochPlan(*(t[places] for t in vars(plan).values())))


@pytest.mark.parametrize("hole", [(16, 16), (4, 28), (0, 0), (31, 31), (0, 31), (3, 16)])
def test_cutout_blanks_one_square_and_nothing_else(hole: tuple[int, int]):
    row, column = hole
    blanked = cutout(torch.ones(1, 3, 32, 32), plan_of(0, 0, False, hole))
    expected = torch.ones(1, 3, 32, 32)
    half = HOLE // 2
    expected[:, :, max(0, row - half) : row + half, max(0, column - half) : column + half] = 0
    assert torch.equal(blanked, expected)


def test_cutout_keeps_the_layout():
    images = torch.ones(2, 3, 32, 32).to(memory_format=torch.channels_last)
    plan = EpochPlan(*(t[:2] for t in vars(plan_epoch(2, 0, 0, "crop_flip_cutout")).values()))
    assert cutout(images, plan).is_contiguous(memory_format=torch.channels_last)
