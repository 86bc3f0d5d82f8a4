"""`python -m trainer anatomy`: a table and a sentence out of a run's events."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from trainer.anatomy import PARTS
from trainer.config import TrainConfig
from trainer.events import EventWriter
from trainer.runs import Run

START = {"step": 0, "world_size": 2, "backend": "gloo", "gradient_bytes": 100, "largest_layer": "fc1"}
RANKS = [{"forward": 0.01, "backward": 0.02, "exchange": 0.05, "hidden": 0.003}, {"forward": 0.03, "exchange": 0.05}]


@pytest.fixture
def run(runs_dir) -> Run:
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"), waits_here=True)
    events = EventWriter(run.events_path)
    events.write("start", **START, largest_layer_bytes=99)
    events.write("anatomy", step=40, steps=40, seconds=0.08, ranks=RANKS)
    events.close()
    return run


def anatomy(run: Run, *argv: str) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "trainer", "anatomy", run.id, "--runs-dir", str(run.path.parent), *argv]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_a_row_a_rank_the_parts_that_took_time_and_the_verdict(run: Run):
    title, heads, first, second, sentence = anatomy(run).stdout.splitlines()
    assert title == f"{run.id}: milliseconds in a step, mean of 40"
    assert heads.split() == ["forward", "backward", "exchange", "in", "all", "hidden"]
    assert first.split() == ["rank", "0", "10.00", "20.00", "50.00", "80.00", "3.00"]
    assert second.split() == ["rank", "1", "30.00", "0.00", "50.00", "80.00", "0.00"]
    assert sentence.startswith("62 % of a step is gradient exchange")


def test_json_has_the_same_numbers(run: Run):
    found = json.loads(anatomy(run, "--json").stdout)
    assert found["steps"] == 40
    assert found["seconds"] == pytest.approx(0.08)
    assert found["slowest"] is None
    assert [sum(rank[name] for name in PARTS) for rank in found["ranks"]] == pytest.approx([0.08, 0.08])
    assert found["verdict"].startswith("62 %")


def test_a_run_that_noted_nothing_says_so(run: Run):
    run.events_path.unlink()
    done = anatomy(run)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {run.id} has noted nothing of its steps")
