"""system.jsonl: what the machine does while a run is at work."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import await_true
from tests.disks import fill, needs_small_disks, small_disk
from trainer import system
from trainer.config import TrainConfig
from trainer.runs import Run
from trainer.system import _Own, sample_system


@pytest.fixture
def run(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(system, "PERIOD", 0.02)
    return Run.create(runs_dir, TrainConfig(dataset="shapes"))


def test_samples_come_while_the_block_runs_and_not_after(run: Run):
    path = run.path / "system.jsonl"
    with sample_system(run):
        await_true(lambda: path.exists() and path.read_text().count("\n") > 3, 20, "four samples")
    after = path.read_text()
    samples = [json.loads(line) for line in after.splitlines()]
    assert all(0 <= sample["cpu"] <= 100 and sample["memory"] > 10**6 for sample in samples)
    assert [s["time"] for s in samples] == sorted(s["time"] for s in samples)
    assert path.read_text() == after


def test_a_run_s_own_work_is_told_apart_from_that_of_others(start_process):
    """A child that spins takes one core of all; a neighbour that spins counts for nothing."""
    spin = "while True: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    busy = _Own(psutil.Process(start_process(sys.executable, "-c", parent).pid))
    idle = _Own(psutil.Process(start_process(sys.executable, "-c", "input()", stdin=subprocess.PIPE).pid))
    one_core = 100 / psutil.cpu_count()
    await_true(lambda: time.sleep(0.2) or busy.sample()["own"] > 0.2 * one_core, 30, "the work of the child")
    idle.sample()
    time.sleep(0.5)
    assert idle.sample()["own"] < 0.1 * one_core


def test_a_folder_that_vanishes_ends_the_samples_and_nothing_else(run: Run):
    with sample_system(run):
        await_true((run.path / "system.jsonl").exists, 20, "a sample")
        shutil.rmtree(run.path, ignore_errors=True)


def samples(run: Run) -> int:
    path = run.path / "system.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


@needs_small_disks
def test_samples_go_on_when_a_full_disk_has_room_again_and_it_is_told_once(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setattr(system, "PERIOD", 0.01)
    with small_disk(tmp_path / "disk", "256k") as disk:
        run = Run.create(disk / "runs", TrainConfig(dataset="shapes"))
        filler = fill(disk)
        with sample_system(run):
            time.sleep(0.3)
            assert samples(run) <= 1
            filler.unlink()
            await_true(lambda: samples(run) > 5, 20, "samples on a disk with room")
        lines = (run.path / "system.jsonl").read_bytes().splitlines()
    assert all(json.loads(line)["cpu"] >= 0 for line in lines[1:])  # the first may be torn
    assert capfd.readouterr().err.count("\n") == 1


def test_a_torn_line_costs_itself_only(run: Run):
    path = run.path / "system.jsonl"
    path.write_text('{"time": 17')
    with sample_system(run):
        await_true(lambda: samples(run) > 2, 20, "two samples")
    torn, *lines = path.read_text().splitlines()
    assert torn == '{"time": 17'
    assert all(json.loads(line)["memory"] for line in lines)


def test_a_failure_in_the_block_is_passed_on(run: Run):
    with pytest.raises(ValueError, match="mine"), sample_system(run):
        raise ValueError("mine")
