"""Runs wait in the order in which they were queued, start once, and never two on one device."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import await_true
from trainer import queue
from trainer.config import ConfigError, TrainConfig
from trainer.devices import Gpu
from trainer.placement import Placement
from trainer.processes import identity
from trainer.queue import cancel, has_trainer, runs_at_work, turns, wait_for_turn, waiting_runs
from trainer.runs import Run, RunError

CONFIG = TrainConfig(dataset="shapes", devices="cpu")
WAITER = """
import sys
from pathlib import Path
from trainer.queue import wait_for_turn
from trainer.runs import Run, event_writer
run = Run(Path(sys.argv[1]))
placement = wait_for_turn(run)
print("claimed" if placement else "left", flush=True)
sys.stdin.read()
if placement:
    event_writer(run).write("end", status="completed", error=None, rank=None, step=0)
"""


@pytest.fixture
def waiter(start_process):
    """Start a process that waits for its turn, says so, and keeps the device until its stdin is closed."""

    def start(run: Run) -> subprocess.Popen:
        return start_process(sys.executable, "-c", WAITER, run.path, stdin=-1, stdout=-1, stderr=-1)

    return start


def new(runs_dir: Path, **changes) -> Run:
    return Run.create(runs_dir, CONFIG.changed(**changes))


def order(runs_dir: Path) -> list[str]:
    return [run.id for run in waiting_runs(runs_dir)]


def gpus(*indices: int) -> list[Gpu]:
    return [Gpu(index, f"GPU-{index}", "A chip", 1, 1) for index in indices]


def test_first_come_first_served_and_a_resumed_run_queues_at_the_end(runs_dir: Path):
    runs = [new(runs_dir) for _ in range(3)]
    assert order(runs_dir) == [run.id for run in runs]
    assert cancel(runs[0])
    runs[0].requeue()
    assert order(runs_dir) == [runs[1].id, runs[2].id, runs[0].id]


def test_a_directory_with_nothing_but_settings_is_queued_too(runs_dir: Path):
    run = new(runs_dir)
    run.launch_path.unlink()
    assert order(runs_dir) == [run.id]
    assert run.state().status == "queued"


def test_a_deleted_or_cancelled_run_leaves_the_queue(runs_dir: Path):
    first, second, third = (new(runs_dir) for _ in range(3))
    first.delete()
    assert cancel(second)
    assert order(runs_dir) == [third.id]
    assert second.state().status == "stopped"
    assert not cancel(second)


def test_the_second_waits_until_the_process_of_the_first_is_gone(runs_dir: Path, waiter):
    first, second = new(runs_dir), new(runs_dir)
    holder = waiter(first)
    assert holder.stdout.readline() == "claimed\n"
    late = waiter(second)
    assert late.stdout.readline() == f"queued: {second.id} starts when {first.id} has ended\n"
    assert second.state().status == "queued"
    assert has_trainer(second)
    holder.kill()  # no end was written: the device is free because the process is gone
    assert late.stdout.readline() == "claimed\n"
    assert [run.id for run, _ in runs_at_work(runs_dir)] == [second.id]


def test_nobody_overtakes_on_the_same_device(runs_dir: Path, waiter):
    first, second, third = (new(runs_dir) for _ in range(3))
    holder = waiter(first)
    assert holder.stdout.readline() == "claimed\n"
    last = waiter(third)
    assert third.id in last.stdout.readline()
    holder.stdin.close()
    holder.wait(30)
    assert last.stdout.readline() == f"queued: {third.id} starts when {second.id} has ended\n"


def test_many_who_want_one_run_at_once_claim_it_once(runs_dir: Path, waiter):
    run = new(runs_dir)
    crowd = [waiter(run) for _ in range(6)]
    said = [process.communicate(timeout=60) for process in crowd]
    assert sum("claimed" in out for out, _ in said) == 1
    assert all("already started" in err for out, err in said if "claimed" not in out)


def test_a_waiter_leaves_when_its_run_is_cancelled_or_deleted(runs_dir: Path, waiter):
    first, second, third = (new(runs_dir) for _ in range(3))
    holder = waiter(first)
    assert holder.stdout.readline() == "claimed\n"
    waiters = [waiter(run) for run in (second, third)]
    for process in waiters:
        assert "queued" in process.stdout.readline()
    assert cancel(second)
    third.delete()
    for process in waiters:
        assert "left" in process.communicate(timeout=30)[0]


def test_a_stop_that_came_before_the_start_is_obeyed(runs_dir: Path, waiter):
    run = new(runs_dir)
    run.ask_to_stop()
    process = waiter(run)
    assert "left" in process.communicate(timeout=30)[0]
    assert run.state().status == "stopped"


def test_a_waiter_that_dies_leaves_its_run_in_the_queue_for_others(runs_dir: Path, waiter):
    first, second = new(runs_dir), new(runs_dir)
    holder = waiter(first)
    assert holder.stdout.readline() == "claimed\n"
    doomed = waiter(second)
    assert "queued" in doomed.stdout.readline()
    doomed.kill()
    doomed.wait(10)
    await_true(lambda: not has_trainer(second), 10, "the end of the waiter")
    assert order(runs_dir) == [second.id]
    assert second.state().status == "queued"


def test_what_this_machine_cannot_place_is_refused_and_stops_nobody_else(runs_dir: Path):
    impossible, possible = new(runs_dir, devices="7"), new(runs_dir)
    answers = dict(turns(runs_dir))
    assert isinstance(answers[impossible], ConfigError)
    assert isinstance(answers[possible], Placement)
    with pytest.raises(ConfigError, match="no GPU 7"):
        wait_for_turn(impossible)


def test_damaged_settings_in_the_queue_stop_nobody_else(runs_dir: Path):
    broken, other = new(runs_dir), new(runs_dir)
    (broken.path / "config.json").write_text("{")
    answers = dict(turns(runs_dir))
    assert isinstance(answers[broken], ConfigError)
    assert isinstance(answers[other], Placement)


def test_disjoint_gpus_are_used_side_by_side(runs_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queue, "list_gpus", lambda: gpus(0, 1, 2, 3))
    pair = new(runs_dir, parallel="ddp", devices="0,1")
    other_pair = new(runs_dir, parallel="dp", devices="2,3")
    everything = new(runs_dir, parallel="ddp", devices="auto")
    on_cpu = new(runs_dir)
    answers = dict(turns(runs_dir))
    assert [gpu.index for gpu in answers[pair].gpus] == [0, 1]
    assert [gpu.index for gpu in answers[other_pair].gpus] == [2, 3]
    assert answers[everything] == [pair, other_pair]
    assert isinstance(answers[on_cpu], Placement)


def test_auto_takes_a_free_gpu_rather_than_wait_for_a_busy_one(runs_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queue, "list_gpus", lambda: gpus(0, 1))
    runs = [new(runs_dir, devices="auto") for _ in range(3)]
    answers = dict(turns(runs_dir))
    assert [gpu.index for run in runs[:2] for gpu in answers[run].gpus] == [0, 1]
    assert answers[runs[2]] == [runs[0]]


def test_a_run_that_wants_all_gpus_is_not_overtaken_for_ever(runs_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queue, "list_gpus", lambda: gpus(0, 1))
    busy = new(runs_dir, devices="0")
    busy.claim(["GPU-0"])
    everything, small = new(runs_dir, parallel="ddp", devices="auto"), new(runs_dir, devices="1")
    answers = dict(turns(runs_dir))
    assert answers[everything] == [busy]
    assert answers[small] == [everything]


def test_a_run_that_does_not_say_what_it_holds_holds_everything(runs_dir: Path):
    unknown, waiting = new(runs_dir), new(runs_dir)
    unknown.claim()
    assert dict(turns(runs_dir))[waiting] == [unknown]
    assert dict(turns(runs_dir, leaving=unknown))[waiting].world_size == 1


def test_a_runs_directory_that_cannot_be_written_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"), queue.locked(tmp_path / "file" / "runs"):
        pass


def test_a_lock_that_a_suspended_process_holds_is_told_instead_of_waited_for(
    runs_dir: Path, start_process, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(queue, "LOCK_PATIENCE", 0.3)
    code = (
        "import os, signal, sys; from pathlib import Path; from trainer.queue import locked\n"
        "with locked(Path(sys.argv[1])): print('mine', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    holder = start_process(sys.executable, "-c", code, runs_dir, stdout=-1)
    assert holder.stdout.readline() == "mine\n"
    with pytest.raises(RunError, match="held the lock"), queue.locked(runs_dir):
        pass
    holder.kill()


def test_the_lock_of_a_killed_process_is_free(runs_dir: Path, start_process):
    code = (
        "import sys, time; from pathlib import Path; from trainer.queue import locked\n"
        "with locked(Path(sys.argv[1])): print('mine', flush=True); time.sleep(600)"
    )
    holder = start_process(sys.executable, "-c", code, runs_dir, stdout=-1)
    assert holder.stdout.readline() == "mine\n"
    holder.kill()
    began = time.monotonic()
    with queue.locked(runs_dir):
        assert time.monotonic() - began < 30
    assert os.path.exists(runs_dir / ".lock")


def test_a_trainer_that_is_starting_keeps_its_turn_from_one_that_came_to_light_later(runs_dir: Path, waiter):
    early, late = new(runs_dir), new(runs_dir)
    process = waiter(new(runs_dir / "elsewhere"))
    known = identity(process.pid)
    late.launch_path.write_text(json.dumps({"queued": late.queued_at, "pid": known[0], "start": known[1]}))
    assert order(runs_dir) == [late.id, early.id]
    assert dict(turns(runs_dir))[early] == [late]
