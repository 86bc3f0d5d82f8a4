"""Which GPUs are visible, by CUDA's own rules, on machines that are only imagined."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from trainer.devices import Gpu, cpu_cores, cpu_has_bf16, cpu_name, list_gpus, visible

UUIDS = ["GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000", "GPU-cccc4444-0000"]
GPUS = [Gpu(index, uuid, "H200", 2**37, 2**36) for index, uuid in enumerate(UUIDS)]


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 3 , 1 ", [3, 1]),
        (UUIDS[2], [2]),
        ("GPU-bbbb", [2]),
        ("GPU-cccc,GPU-aaaa2", [3, 1]),
        ("GPU-bbbb,0", [2, 0]),
        ("GPU-aaaa", []),  # two begin so
        ("1,9,2", [1]),
        ("-1", []),
        ("1,-1,2", [1]),
        ("1,,2", [1]),
        ("junk", []),
        ("0,junk,1", [0]),
        ("NoDevFiles", []),
        ("1,1", []),
        ("2,GPU-bbbb", []),
        ("MIG-aaaa", []),
    ],
)
def test_the_setting_chooses_and_orders(setting: str | None, indices: list[int]):
    assert [gpu.index for gpu in visible(GPUS, setting)] == indices


@pytest.mark.parametrize("setting", [None, "", "0", "junk"])
def test_without_gpus_none_is_visible(setting: str | None):
    assert visible([], setting) == []


def test_an_empty_setting_hides_real_gpus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert list_gpus() == []


def test_the_cores_are_those_this_process_may_use():
    assert 1 <= cpu_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_a_process_held_to_one_core_has_one():
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}]); from trainer.devices import cpu_cores; print(cpu_cores())"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True).stdout == b"1\n"


def test_the_processor_has_a_name_and_an_answer_about_bf16():
    assert cpu_name().strip()
    assert cpu_has_bf16() in (True, False)
