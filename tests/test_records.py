"""Records about processes: who is at work is known also where the process cannot be seen."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import await_true
from trainer.config import TrainConfig
from trainer.files import read_json, write_atomic
from trainer.queue import has_trainer
from trainer.records import LOCK, is_held
from trainer.runs import Run, RunError
from trainer.stop import stop_run


def with_unseen_process(run: Run, name: str = "process.json") -> None:
    """What the record of a process in a container looks like from outside: its pid means another process."""
    write_atomic(run.path / name, json.dumps({**(read_json(run.path / name) or {}), "pid": 1}))


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
        assert is_held(run.path)
        process.kill()
        process.wait(10)
        os.kill(child, 0)
        assert not is_held(run.path)
    finally:
        os.kill(child, 9)


def test_a_process_that_waits_and_cannot_be_seen_keeps_its_run(runs_dir: Path, actor, start_process):
    actor(Run.create(runs_dir, TrainConfig(dataset="shapes", devices="cpu")), "claim", "start")
    run = Run.create(runs_dir, TrainConfig(dataset="shapes", devices="cpu"))
    code = "import sys; from pathlib import Path; from trainer.queue import *; wait_for_turn(Run(Path(sys.argv[1])))"
    process = start_process(sys.executable, "-c", code, run.path)
    await_true(lambda: run.launch().get("waiting"), 30, "the one that waits")
    process.send_signal(signal.SIGSTOP)
    with_unseen_process(run, "launch.json")
    assert has_trainer(run)
    process.kill()
    process.wait(10)
    assert not has_trainer(run)


def test_what_others_read_is_not_locked(runs_dir: Path, actor):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    actor(run, "claim", "start")
    for path in run.path.iterdir():
        with path.open("rb") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            continue
        assert path.name == LOCK


def test_a_run_that_is_claimed_again_by_the_same_process_is_held_again(runs_dir: Path, start_process):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    code = (
        "import sys; from pathlib import Path; from trainer.runs import *\n"
        "run = Run(Path(sys.argv[1])); run.claim(); event_writer(run).write('end', status='stopped')\n"
        "run.requeue(); run.claim(); print('ready', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    process = start_process(sys.executable, "-c", code, run.path, stdin=pipe, stdout=pipe)
    assert process.stdout.readline() == "ready\n"
    with_unseen_process(run)
    assert run.state().status == "starting"
    process.kill()
    process.wait(10)
    assert run.state().status == "interrupted"


def test_a_claim_that_somebody_removes_is_put_back_by_its_owner_and_not_into_a_run_that_is_gone(runs_dir: Path):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    run.claim()
    record = read_json(run.path / "process.json")
    (run.path / "process.json").unlink()
    run.keep_claim()
    assert read_json(run.path / "process.json") == record
    shutil.rmtree(run.path)
    run.keep_claim()
    assert not run.path.exists()


def test_nobody_else_claims_a_run_whose_record_is_away_while_its_process_lives(runs_dir: Path, actor, start_process):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes", devices="cpu"))
    owner = actor(run, "claim", "start")
    (run.path / "process.json").unlink()
    code = "import sys; from pathlib import Path; from trainer.queue import *; wait_for_turn(Run(Path(sys.argv[1])))"
    other = start_process(sys.executable, "-c", code, run.path)
    time.sleep(1.5)  # it looks twice a second
    assert not run.has_claim
    owner.kill()
    await_true(lambda: run.has_claim, 10, "the claim of the one that waited")
    assert other.wait(10) == 0


def test_a_hard_linked_copy_of_a_run_at_work_is_not_at_work(runs_dir: Path, actor):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    actor(run, "claim", "start")
    copy = Run(runs_dir / "20200101-000000-single-abcd")
    copy.path.mkdir()
    for path in run.path.iterdir():
        os.link(path, copy.path / path.name)
    assert (run.state().status, copy.state().status) == ("running", "interrupted")
