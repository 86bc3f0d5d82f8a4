"""Which processes run where, on machines that are only imagined."""

from typing import Any

import pytest

from trainer.config import ConfigError, TrainConfig
from trainer.devices import Gpu
from trainer.placement import Placement, place


def placed(num_gpus: int = 0, cores: int = 8, has_bf16: bool = True, **values: Any) -> Placement:
    gpus = [Gpu(index, f"GPU-{index}", "H200", 2**37, 2**36) for index in range(num_gpus)]
    return place(TrainConfig(**values), gpus, cores, has_bf16)


def indices(placement: Placement) -> list[int]:
    return [gpu.index for gpu in placement.gpus]


@pytest.mark.parametrize(
    ("values", "num_gpus", "expected"),
    [
        # settings, GPUs of the machine -> GPUs used, processes, backend, batch of each device
        ({}, 0, ([], 1, "", 128)),
        ({}, 4, ([0], 1, "", 128)),
        ({"devices": "3"}, 4, ([3], 1, "", 128)),
        ({"devices": "cpu"}, 4, ([], 1, "", 128)),
        ({"parallel": "dp"}, 0, ([], 1, "", 128)),
        ({"parallel": "dp"}, 4, ([0, 1, 2, 3], 1, "", 32)),
        ({"parallel": "dp", "devices": "3,1"}, 4, ([3, 1], 1, "", 64)),
        ({"parallel": "ddp"}, 0, ([], 2, "gloo", 64)),
        ({"parallel": "ddp"}, 1, ([0], 1, "nccl", 128)),
        ({"parallel": "ddp"}, 4, ([0, 1, 2, 3], 4, "nccl", 32)),
        ({"parallel": "ddp", "devices": "3,1"}, 4, ([3, 1], 2, "nccl", 64)),
        ({"parallel": "ddp", "processes": 2}, 4, ([0, 1], 2, "nccl", 64)),
        ({"parallel": "ddp", "processes": 4}, 0, ([], 4, "gloo", 32)),
        ({"parallel": "ddp", "devices": "cpu"}, 4, ([], 2, "gloo", 64)),
    ],
)
def test_devices_and_processes_are_resolved(values: dict, num_gpus: int, expected: tuple):
    placement = placed(num_gpus, **values)
    found = indices(placement), placement.world_size, placement.backend, placement.per_device_batch
    assert found == expected
    assert placement.device_type == ("cuda" if expected[0] else "cpu")


@pytest.mark.parametrize(
    ("values", "num_gpus", "field", "words"),
    [
        ({"devices": "0"}, 0, "devices", "no GPU 0: this machine shows no GPU"),
        ({"devices": "7"}, 2, "devices", "no GPU 7: this machine has 0, 1"),
        ({"devices": "0,1"}, 2, "devices", "single trains on one"),
        ({"parallel": "ddp", "processes": 3}, 2, "processes", "more than the 2 GPUs"),
        ({"parallel": "ddp", "processes": 3}, 0, "batch_size", "the nearest is 126 or 129"),
        ({"parallel": "dp", "batch_size": 10}, 4, "batch_size", "the nearest is 8 or 12"),
        ({"parallel": "ddp", "batch_size": 1}, 0, "batch_size", "the nearest is 2"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(values: dict, num_gpus: int, field: str, words: str):
    with pytest.raises(ConfigError) as caught:
        placed(num_gpus, **values)
    assert list(caught.value.errors) == [field]
    assert words in caught.value.errors[field]


@pytest.mark.parametrize("sharers", range(2, 9))
@pytest.mark.parametrize("batch_size", [1, 7, 127, 1000])
def test_the_nearest_batches_that_are_named_are_accepted(sharers: int, batch_size: int):
    values = {"parallel": "ddp", "processes": sharers}
    try:
        placed(**values, batch_size=batch_size)
    except ConfigError as error:
        nearest = error.errors["batch_size"].split("nearest is ")[1].split(" or ")
        for number in map(int, nearest):
            assert abs(number - batch_size) < sharers
            assert placed(**values, batch_size=number).per_device_batch == number // sharers
    else:
        assert batch_size % sharers == 0


@pytest.mark.parametrize(("world_size", "cores", "threads"), [(2, 8, 4), (2, 2, 1), (4, 2, 1), (3, 8, 2), (1, 8, 8)])
def test_the_ranks_share_the_cores(world_size: int, cores: int, threads: int):
    values = {"parallel": "ddp", "processes": world_size, "batch_size": 120}
    assert placed(cores=cores, **values).threads == threads


@pytest.mark.parametrize(
    ("values", "num_gpus", "has_bf16", "words"),
    [
        ({"parallel": "dp"}, 0, True, "passes everything through"),
        ({"parallel": "dp"}, 1, True, "same as single"),
        ({"processes": 2}, 0, True, "processes = 2 has no effect"),
        ({"parallel": "ddp"}, 0, True, "not faster than one process"),
        ({"parallel": "ddp", "processes": 1}, 2, True, "nothing is exchanged"),
        ({"precision": "bf16"}, 0, False, "no bf16"),
        ({"precision": "fp16"}, 0, True, "fp16 needs a GPU"),
        ({"compile": True}, 0, True, "GPUs only"),
        ({"model": "resnet18", "parallel": "ddp"}, 2, True, "BatchNorm"),
        ({"model": "resnet9", "parallel": "dp"}, 2, True, "BatchNorm"),
        ({"optimizer": "adamw", "nesterov": True}, 0, True, "nesterov has no effect"),
    ],
)
def test_a_setting_without_effect_is_told(values: dict, num_gpus: int, has_bf16: bool, words: str):
    (sentence,) = [text for text in placed(num_gpus, has_bf16=has_bf16, **values).warnings if words in text]
    assert sentence.endswith(".")


@pytest.mark.parametrize(("values", "num_gpus"), [({}, 0), ({}, 1), ({"parallel": "dp"}, 2), ({"parallel": "ddp"}, 2)])
def test_an_ordinary_run_has_nothing_to_tell(values: dict, num_gpus: int):
    assert placed(num_gpus, **values).warnings == ()
