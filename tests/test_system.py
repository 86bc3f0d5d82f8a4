"""system.jsonl: what the machine does while a run is at work."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import await_true
from trainer import system
from trainer.config import TrainConfig
from trainer.runs import Run
from trainer.system import sample_system


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


def test_a_folder_that_vanishes_ends_the_samples_and_nothing_else(run: Run):
    with sample_system(run):
        await_true((run.path / "system.jsonl").exists, 20, "a sample")
        shutil.rmtree(run.path, ignore_errors=True)


def test_a_failure_in_the_block_is_passed_on(run: Run):
    with pytest.raises(ValueError, match="mine"), sample_system(run):
        raise ValueError("mine")
