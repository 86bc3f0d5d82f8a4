"""Trainers are started for the runs whose turn it is, once, by whoever comes by; the queue needs no page."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, await_true
from tests.page import end_runs
from trainer.background import last_line, start_waiting
from trainer.config import TrainConfig
from trainer.event_reader import read_events
from trainer.processes import alive
from trainer.queue import cancel
from trainer.runs import Run
from ui.run_facts import log_end

FAKE = (sys.executable, str(ROOT / "tests" / "fake_trainer.py"))


@pytest.fixture(autouse=True)
def _nothing_stays(runs_dir: Path) -> Iterator[None]:
    yield
    end_runs(runs_dir)


def new(runs_dir: Path, behaviour: str = "obedient", **changes) -> Run:
    return Run.create(runs_dir, TrainConfig(dataset="shapes", devices="cpu", label=behaviour, **changes))


def status(run: Run) -> str:
    return str(run.state().status)


def starts(run: Run) -> int:
    return sum(event["kind"] == "start" for event in read_events(run.events_path))


def test_only_the_first_of_those_who_want_the_same_device_is_started(runs_dir: Path):
    first, second = new(runs_dir), new(runs_dir)
    start_waiting(runs_dir, FAKE)
    assert status(first) in ("starting", "running")
    assert status(second) == "queued"
    assert not second.log_path.exists()


def test_a_pipe_in_place_of_the_log_blocks_nobody(runs_dir: Path):
    odd, next_one = new(runs_dir), new(runs_dir)
    os.mkfifo(odd.log_path)
    start_waiting(runs_dir, FAKE)
    why = f"The trainer could not be started: it is a pipe: {odd.log_path}"
    assert (status(odd), odd.state().error) == ("failed", why)
    assert (last_line(odd.log_path), log_end(odd)) == ("", "")
    start_waiting(runs_dir, FAKE)
    assert status(next_one) in ("starting", "running")


def test_many_who_come_by_at_once_start_it_once(runs_dir: Path):
    runs = [new(runs_dir, "quick") for _ in range(3)]
    threads = [threading.Thread(target=start_waiting, args=(runs_dir, FAKE)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for run in runs:
        await_true(lambda: status(runs[0]) == "completed", 60, "the end of the first run")
        start_waiting(runs_dir, FAKE)
        await_true(lambda run=run: status(run) == "completed", 60, f"the end of {run.id}")
        await_true(lambda run=run: not alive(run.identity()), 30, "the end of its process")
        start_waiting(runs_dir, FAKE)
    assert [starts(run) for run in runs] == [1, 1, 1]


def test_a_trainer_that_ends_starts_the_next_one_without_any_page(runs_dir: Path, trainer):
    config = {"max_steps": 1, "batch_size": 8, "model": "tutorial", "precision": "fp32"}
    settings = TrainConfig(dataset="shapes", devices="cpu", **config)
    first, second = (Run.create(runs_dir, settings) for _ in range(2))
    done = trainer("train", "--run", str(first.path))
    assert done.returncode == 0, done.stderr
    await_true(lambda: status(second) == "completed", 120, "the second run")
    assert os.getpgid(0) != second.identity()[0]
    assert starts(first) == starts(second) == 1


def test_whoever_takes_a_run_out_of_the_queue_does_not_hold_its_device(runs_dir: Path):
    cancelled, impossible, last = new(runs_dir), new(runs_dir), new(runs_dir)
    impossible.write_config(impossible.config().changed(devices="7"))
    assert cancel(cancelled)
    start_waiting(runs_dir, FAKE)
    assert [status(run) for run in (cancelled, impossible)] == ["stopped", "failed"]
    assert cancelled.identity() is None
    assert status(last) in ("starting", "running")


def test_what_cannot_be_placed_here_fails_with_the_reason_and_the_next_is_started(runs_dir: Path):
    impossible = new(runs_dir)
    impossible.write_config(impossible.config().changed(devices="7"))
    next_one = new(runs_dir)
    start_waiting(runs_dir, FAKE)
    assert status(impossible) == "failed"
    assert "no GPU 7" in impossible.state().error
    assert status(next_one) in ("starting", "running")


def test_a_trainer_that_cannot_be_executed_fails_its_run(runs_dir: Path):
    run = new(runs_dir)
    start_waiting(runs_dir, ("/no/such/python",))
    assert status(run) == "failed"
    assert "could not be started" in run.state().error


def test_a_runs_directory_that_is_not_there_is_an_empty_queue(runs_dir: Path):
    start_waiting(runs_dir, FAKE)
    assert not runs_dir.exists()
