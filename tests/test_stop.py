"""Stop ends a run, whatever its processes do about it, and leaves a final status and nothing alive."""

import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import await_true
from trainer.config import TrainConfig
from trainer.event_reader import read_events
from trainer.processes import alive, tree
from trainer.runs import Run, RunError
from trainer.stop import stop_run


@pytest.fixture
def run(runs_dir: Path) -> Run:
    return Run.create(runs_dir, TrainConfig(dataset="shapes"))


def ends(run: Run) -> list[dict]:
    return [event for event in read_events(run.events_path) if event["kind"] == "end"]


def test_one_that_obeys_is_left_to_say_its_end_itself(run: Run, start_process):
    code = (
        "import sys, time; from pathlib import Path; from trainer.runs import Run, event_writer\n"
        "run = Run(Path(sys.argv[1])); run.claim(); event_writer(run).write('start', step=0)\n"
        "print('ready', flush=True)\n"
        "while not run.stop_path.exists(): time.sleep(0.02)\n"
        "event_writer(run).write('end', status='stopped', error=None, rank=None, step=3)"
    )
    process = start_process(sys.executable, "-c", code, run.path, stdout=-1)
    assert process.stdout.readline() == "ready\n"
    assert stop_run(run, grace=30) == "stopped"
    assert process.wait(10) == 0
    assert [(end["step"], end["error"]) for end in ends(run)] == [(3, None)]


def test_one_that_is_deaf_is_killed_and_the_record_says_so(run: Run, actor):
    process = actor(run, "claim", "start", "rank:0", "deaf")
    begin = time.monotonic()
    assert stop_run(run, grace=0.2) == "stopped"
    assert time.monotonic() - begin < 10
    assert process.wait(10) == -9
    (end,) = ends(run)
    assert end["step"] == 7
    assert "killed" in end["error"]


def test_one_that_has_not_begun_to_train_is_stopped_too(run: Run, actor):
    actor(run, "claim", "deaf")
    assert run.state().status == "starting"
    assert stop_run(run, grace=0.1) == "stopped"


def test_ranks_that_lost_their_parent_are_ended_with_the_rest(run: Run, actor):
    process = actor(run, "claim", "start", "deaf", "family")
    await_true(lambda: len(run.rank_identities()) == 2, 20, "both ranks")
    known = run.identity()
    assert known
    ranks = run.rank_identities()
    assert ranks[0] not in tree(known), "rank 1 is to be an orphan here"
    assert ranks[1] in tree(known)
    assert stop_run(run, grace=0.1) == "stopped"
    assert not any(map(alive, [known, *ranks]))
    assert process.wait(10) == -9


def test_stopping_twice_changes_nothing(run: Run, actor):
    actor(run, "claim", "start")
    assert stop_run(run, grace=0.1) == "stopped"
    before = run.events_path.read_bytes()
    assert stop_run(run, grace=0.1) == "stopped"
    assert run.events_path.read_bytes() == before


def test_two_who_stop_at_once_agree(run: Run, actor):
    actor(run, "claim", "start", "deaf")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(stop_run(run, grace=0.2))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == ["stopped"] * 3
    assert {end["status"] for end in ends(run)} == {"stopped"}


@pytest.mark.parametrize("status", ["completed", "failed", "diverged"])
def test_stopping_after_the_end_keeps_what_the_end_said(run: Run, actor, status: str):
    process = actor(run, "claim", "start", f"end:{status}")
    process.kill()
    process.wait(10)
    assert stop_run(run) == status
    assert not run.stop_path.exists()


def test_a_queued_run_is_taken_out_of_the_queue_and_nobody_can_start_it_any_more(run: Run):
    assert stop_run(run) == "stopped"
    assert run.state().status == "stopped"
    assert "queue" in ends(run)[0]["error"]
    with pytest.raises(RunError, match="already started"):
        run.claim()
    run.requeue()
    assert run.state().status == "queued"


def test_a_run_that_died_before_is_not_called_stopped(run: Run, actor):
    process = actor(run, "claim", "start")
    process.kill()
    process.wait(10)
    assert stop_run(run) == "interrupted"
