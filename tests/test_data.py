"""Each picture counts once, on any number of ranks, and is normalised as torchvision does."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as reference

from trainer.augment import plan_epoch
from trainer.config import choices
from trainer.data import TestSet, TrainSet, normalise, to_tensor

CPU = torch.device("cpu")
HALF = {"mean": [0.5] * 3, "std": [0.5] * 3}


def pictures(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """n pictures, and labels that are their own numbers."""
    images = torch.randint(0, 256, (n, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return images, torch.arange(n)


def train_set(n: int, augment: str = "crop_flip") -> TrainSet:
    return TrainSet(*pictures(n), HALF, augment, CPU)


def test_normalisation_equals_torchvisions():
    images, _ = pictures(5)
    mean, std = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
    floats = reference.to_dtype(images.permute(0, 3, 1, 2), torch.float32, scale=True)
    ours = normalise(images, mean, std)
    torch.testing.assert_close(ours, reference.normalize(floats, mean, std), rtol=0, atol=1e-6)
    assert ours.is_contiguous(memory_format=torch.channels_last)


def test_normalisation_follows_the_default_float_type_and_keeps_its_input():
    images, _ = pictures(2)
    before = images.clone()
    torch.set_default_dtype(torch.float64)
    try:
        assert normalise(images, **HALF).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(images, before)


def test_read_only_arrays_become_tensors_of_their_own():
    array = np.arange(6, dtype=np.int64)
    array.flags.writeable = False
    tensor = to_tensor(array)
    tensor += 1
    assert array.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [42, 100, 127])
def test_an_epoch_counts_every_picture_once_over_all_ranks(n: int, world_size: int):
    data, plan = train_set(n), plan_epoch(n, 0, 0, "crop_flip")
    counted = torch.zeros(n)
    rounds = []
    for rank in range(world_size):
        batches = list(data.batches(plan, 42, rank=rank, world_size=world_size))
        rounds.append([batch.global_size for batch in batches])
        for batch in batches:
            counted.index_add_(0, batch.labels, batch.weight)
    assert torch.equal(counted, torch.ones(n))
    assert rounds == [[42] * (n // 42) + [n % 42] * (n % 42 > 0)] * world_size


def test_a_rank_without_a_share_gets_a_stand_in_that_weighs_nothing():
    data, plan = train_set(5), plan_epoch(5, 0, 0, "none")
    last = [list(data.batches(plan, 4, rank=rank, world_size=4))[-1] for rank in range(4)]
    assert [batch.weight.tolist() for batch in last] == [[1.0], [0.0], [0.0], [0.0]]
    assert [batch.global_size for batch in last] == [1] * 4
    assert all(batch.images.shape == (1, 3, 32, 32) for batch in last)


def test_the_weights_of_all_ranks_are_the_global_batch():
    data, plan = train_set(23), plan_epoch(23, 0, 0, "none")
    shares = [list(data.batches(plan, 9, rank=rank, world_size=3)) for rank in range(3)]
    for batches in zip(*shares, strict=True):
        assert sum(float(batch.weight.sum()) for batch in batches) == batches[0].global_size


@pytest.mark.parametrize("augment", choices("augment"))
def test_the_ranks_together_train_on_the_pictures_of_one_process(augment: str):
    data, plan = train_set(30, augment), plan_epoch(30, 4, 1, augment)
    alone = list(data.batches(plan, 12))
    shares = [list(data.batches(plan, 12, rank=rank, world_size=3)) for rank in range(3)]
    for whole, *parts in zip(alone, *shares, strict=True):
        for rank, part in enumerate(parts):
            assert torch.equal(part.images, whole.images[rank::3])
            assert torch.equal(part.labels, whole.labels[rank::3])


def test_an_epoch_goes_on_in_its_middle_as_if_it_had_not_stopped():
    data, plan = train_set(30), plan_epoch(30, 4, 1, "crop_flip")
    whole, rest = list(data.batches(plan, 8)), list(data.batches(plan, 8, first=2))
    assert len(rest) == 2
    for a, b in zip(whole[2:], rest, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)


def test_a_batch_larger_than_the_data_is_one_batch():
    (batch,) = train_set(5).batches(plan_epoch(5, 0, 0, "none"), 128)
    assert batch.global_size == len(batch.labels) == 5


def test_cutout_is_for_its_own_setting_only():
    plan = plan_epoch(8, 0, 0, "crop_flip_cutout")
    with_holes, without = (next(train_set(8, a).batches(plan, 8)) for a in ("crop_flip_cutout", "crop_flip"))
    blank = (with_holes.images == 0).all(1)
    assert bool(blank.flatten(1).any(1).all())
    assert torch.equal(torch.where(blank[:, None], 0, without.images), with_holes.images)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [1, 25, 1203])
def test_the_test_shares_are_unpadded_and_together_the_test_pictures(n: int, world_size: int):
    images, labels = pictures(n)
    sets = [TestSet(images, labels, HALF, CPU, rank, world_size) for rank in range(world_size)]
    seen = [part for data in sets for _, part in data.batches()]
    assert torch.equal(torch.cat(seen).sort().values, labels)
    sizes = [len(data.labels) for data in sets]
    assert max(sizes) - min(sizes) <= 1
    assert all(len(part) <= sets[0].batch_size for part in seen)


def test_test_pictures_are_not_augmented():
    images, labels = pictures(6)
    ((shown, _),) = TestSet(images, labels, HALF, CPU, 0, 1).batches()
    assert torch.equal(shown, normalise(images, **HALF))
