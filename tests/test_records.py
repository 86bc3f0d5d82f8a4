"""Records about processes: who is at work is known also where the process cannot be seen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.config import TrainConfig
from trainer.files import read_json
from trainer.records import is_held
from trainer.runs import Run, RunError
from trainer.stop import stop_run


def with_unseen_process(run: Run) -> None:
    """What the record of a process in a container looks like from outside: its pid means another process."""
    path = run.path / "process.json"
    record = {**(read_json(path) or {}), "pid": 1}
    with path.open("r+") as file:  # in place: the lock is on this file
        file.write(json.dumps(record))
        file.truncate()


def test_a_process_that_cannot_be_seen_is_at_work_until_it_ends(runs_dir: Path, actor):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    process = actor(run, "claim", "start")
    with_unseen_process(run)
    assert run.state().status == "running"
    process.kill()
    process.wait(10)
    assert run.state().status == "interrupted"


def test_stop_says_so_if_a_process_that_cannot_be_seen_does_not_end(runs_dir: Path, actor):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    actor(run, "claim", "start")
    with_unseen_process(run)
    with pytest.raises(RunError, match="of another container or user"):
        stop_run(run, grace=0.2)
    assert run.is_asked_to_stop


def test_a_forked_child_does_not_count_as_the_process_at_work(runs_dir: Path, start_process):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    code = (
        "import os, sys, time; from pathlib import Path; from trainer.runs import Run\n"
        "Run(Path(sys.argv[1])).claim()\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = start_process(sys.executable, "-c", code, run.path, stdout=subprocess.PIPE)
    child = int(process.stdout.readline())
    try:
        assert is_held(run.path / "process.json")
        process.kill()
        process.wait(10)
        os.kill(child, 0)
        assert not is_held(run.path / "process.json")
    finally:
        os.kill(child, 9)


def test_a_hard_linked_copy_of_a_run_at_work_is_not_at_work(runs_dir: Path, actor):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    actor(run, "claim", "start")
    copy = Run(runs_dir / "20200101-000000-single-abcd")
    copy.path.mkdir()
    for path in run.path.iterdir():
        os.link(path, copy.path / path.name)
    assert (run.state().status, copy.state().status) == ("running", "interrupted")
