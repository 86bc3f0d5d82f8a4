"""Starting, stopping, resuming and adopting runs, with real processes and a trainer that does not train."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, await_true
from tests.page import end_runs
from trainer.background import last_line, trainer_environment
from trainer.config import ConfigError, TrainConfig
from trainer.devices import Gpu
from trainer.processes import alive
from trainer.queue import runs_at_work
from trainer.race import Entrant
from trainer.run_list import iter_runs
from trainer.runs import Run, RunError, RunStatus
from ui.supervisor import LONGEST_QUEUE, Supervisor
from ui.waiting import Board

FAKE = (sys.executable, str(ROOT / "tests" / "fake_trainer.py"))


def settings(behaviour: str = "obedient", **values) -> TrainConfig:
    return TrainConfig(dataset="shapes", label=behaviour, **values)


@pytest.fixture
def supervisor(runs_dir: Path) -> Iterator[Supervisor]:
    """A supervisor of the fake trainer; what it leaves at work is killed, by pid, after the test."""
    yield Supervisor(runs_dir, FAKE)
    end_runs(runs_dir)


def await_status(run: Run, *wanted: RunStatus, seconds: float = 30) -> None:
    await_true(lambda: run.state().status in wanted, seconds, f"status {' or '.join(wanted)}")


def test_a_started_run_is_at_work_at_once_and_runs_in_a_session_of_its_own(supervisor: Supervisor):
    run = supervisor.start(settings())
    assert run.state().status.living
    assert supervisor.living() == [run]
    await_status(run, RunStatus.RUNNING)
    known = run.identity()
    assert known
    assert os.getsid(known[0]) == known[0]


def test_a_second_start_waits_and_begins_when_the_first_has_ended(supervisor: Supervisor):
    first, second, third = (supervisor.start(settings()) for _ in range(3))
    assert supervisor.living() == [first]
    assert supervisor.queued() == [second, third]
    await_status(first, RunStatus.RUNNING)
    supervisor.stop(first.id)
    await_true(lambda: supervisor.tick() or second.state().status == RunStatus.RUNNING, 30, "the turn of the second")
    assert first.state().status == RunStatus.STOPPED
    assert supervisor.queued() == [third]


def test_runs_on_other_gpus_train_side_by_side(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch):
    gpus = [Gpu(index, f"GPU-{index}", "NVIDIA H200", 2**37, 2**37) for index in (0, 1)]
    monkeypatch.setattr("trainer.queue.list_gpus", lambda: gpus)
    runs = [Run.create(supervisor.runs_dir, settings(devices=devices, parallel="ddp")) for devices in ("0", "1", "0,1")]
    for run, gpu in zip(runs, gpus, strict=False):
        run.claim((gpu.uuid,))  # by this very process
    assert supervisor.living() == sorted(runs[:2], key=lambda run: run.id, reverse=True)
    assert supervisor.queued() == runs[2:]
    board = Board(supervisor.runs_dir)
    assert board.would_wait(settings(devices="1"))
    assert not board.would_wait(settings(devices="cpu"))
    waiting = board.place(runs[2])
    assert waiting
    assert (waiting.place, set(waiting.before)) == (1, set(runs[:2]))


@pytest.mark.parametrize("num_servers", [1, 4])
def test_of_starts_at_the_same_moment_one_trains_and_the_others_wait(supervisor, runs_dir: Path, num_servers: int):
    servers = [supervisor, *(Supervisor(runs_dir, FAKE) for _ in range(num_servers - 1))]
    together = threading.Barrier(8)

    def press(server: Supervisor) -> None:
        together.wait(10)
        server.start(settings())

    threads = [threading.Thread(target=press, args=(servers[i % num_servers],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(list(iter_runs(runs_dir))) == 8
    (living,) = supervisor.living()
    await_status(living, RunStatus.RUNNING)
    assert len(supervisor.queued()) == 7


def test_a_queue_has_an_end(supervisor: Supervisor, runs_dir: Path):
    for _ in range(LONGEST_QUEUE + 1):
        supervisor.start(settings())
    assert len(supervisor.queued()) == LONGEST_QUEUE
    with pytest.raises(RunError, match="100 runs wait already"):
        supervisor.start(settings())
    assert len(list(iter_runs(runs_dir))) == LONGEST_QUEUE + 1
    began = time.monotonic()
    for run in supervisor.queued():
        supervisor.stop(run.id)
    assert time.monotonic() - began < 10
    assert supervisor.queued() == []
    assert len(supervisor.living()) == 1


RACERS = [Entrant("single", 1), Entrant("ddp", 2)]


def test_a_race_runs_one_run_at_a_time_is_stopped_whole_and_goes_on(supervisor: Supervisor):
    race = supervisor.start_race(settings(devices="cpu"), RACERS, "strong", 2)
    first, *others = race.runs()
    await_status(first, RunStatus.RUNNING)
    assert supervisor.living() == [first]
    assert supervisor.queued() == others
    supervisor.stop_race(race.id)
    await_true(lambda: not race.is_on, 30, "the end of the race")
    assert {str(state.status) for state in race.states()} == {"stopped"}
    supervisor.stop_race(race.id)  # too late does no harm
    assert supervisor.resume_race(race.id) == 4
    await_status(first, RunStatus.RUNNING)
    assert supervisor.queued() == others


def test_a_race_that_would_not_fit_into_the_queue_leaves_nothing(supervisor: Supervisor, runs_dir: Path, monkeypatch):
    monkeypatch.setattr("ui.supervisor.LONGEST_QUEUE", 3)
    with pytest.raises(RunError, match="more than 3 would wait"):
        supervisor.start_race(settings(devices="cpu"), RACERS, "strong", 2)
    assert not runs_dir.exists()


@pytest.mark.parametrize("race_id", [None, 3, "", "..", "20260101-000000-race-0000", ["x"], "x" * 10_000])
def test_what_is_no_race_cannot_be_stopped_or_resumed(supervisor: Supervisor, race_id: object):
    for act in (supervisor.stop_race, supervisor.resume_race):
        with pytest.raises(RunError, match="there is no race") as caught:
            act(race_id)
        assert len(str(caught.value)) < 300


def test_settings_that_this_machine_cannot_place_start_nothing(supervisor: Supervisor, runs_dir: Path):
    with pytest.raises(ConfigError) as refused:
        supervisor.start(settings(parallel="ddp", devices="cpu", processes=3, batch_size=128))
    assert "126 or 129" in refused.value.errors["batch_size"]
    assert not list(iter_runs(runs_dir))


def test_a_runs_directory_that_cannot_be_written_is_said(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        Supervisor(tmp_path / "file" / "runs", FAKE).start(settings())


def test_a_trainer_that_dies_before_it_claims_its_run_is_reported_with_its_last_words(supervisor: Supervisor):
    run = supervisor.start(settings("broken"))
    await_status(run, RunStatus.FAILED)
    assert run.state().error == "The trainer did not start: ModuleNotFoundError: No module named 'torch'"
    assert supervisor.living() == []


def test_a_trainer_that_leaves_without_a_word_has_failed_even_with_exit_code_0(supervisor: Supervisor):
    run = supervisor.start(settings("mute"))
    await_status(run, RunStatus.FAILED)
    assert "exit code 0" in run.state().error


def test_a_trainer_that_cannot_be_executed_is_a_failed_run_not_a_queued_one(runs_dir: Path):
    with pytest.raises(RunError, match="could not be started"):
        Supervisor(runs_dir, ("/no/such/python",)).start(settings())
    (run,) = iter_runs(runs_dir)
    assert run.state().status == RunStatus.FAILED


def test_a_launched_trainer_that_died_unseen_is_interrupted_not_queued(runs_dir: Path):
    run = Run.create(runs_dir, settings())
    assert run.state().status == RunStatus.QUEUED
    run.launch_path.write_text(json.dumps({"pid": 2**22 + 1, "start": "gone", "events_offset": 0}))
    assert run.state().status == RunStatus.INTERRUPTED


def test_an_ended_trainer_leaves_no_zombie(supervisor: Supervisor):
    run = supervisor.start(settings("quick"))
    await_status(run, RunStatus.COMPLETED)
    known = run.identity()
    assert known
    await_true(lambda: not psutil.pid_exists(known[0]), 10, "the end of the trainer's process")
    assert run.state().status == RunStatus.COMPLETED


def test_stop_asks_first(supervisor: Supervisor):
    run = supervisor.start(settings())
    await_status(run, RunStatus.RUNNING)
    supervisor.stop(run.id)
    assert run.state().status in (RunStatus.STOPPING, RunStatus.STOPPED)
    await_status(run, RunStatus.STOPPED)
    assert run.state().end["error"] is None


def test_stop_ends_a_trainer_that_ignores_requests_and_signals(supervisor: Supervisor):
    run = supervisor.start(settings("deaf"))
    await_status(run, RunStatus.RUNNING)
    known = run.identity()
    assert known
    supervisor.stop(run.id)
    supervisor.stop(run.id)  # an impatient second press changes nothing
    await_status(run, RunStatus.STOPPED)
    assert not alive(known)
    assert supervisor.living() == []


def test_a_run_that_has_ended_cannot_be_stopped(supervisor: Supervisor):
    run = supervisor.start(settings("quick"))
    await_status(run, RunStatus.COMPLETED)
    with pytest.raises(RunError, match="completed"):
        supervisor.stop(run.id)
    assert not run.stop_path.exists()


def test_a_run_that_a_shell_started_is_adopted_and_stopped(supervisor: Supervisor, runs_dir: Path, start_process):
    run = Run.create(runs_dir, settings())
    start_process(*FAKE, "train", "--run", run.path)
    await_status(run, RunStatus.RUNNING)
    assert supervisor.living() == [run]
    waiting = supervisor.start(settings())
    assert supervisor.queued() == [waiting]
    supervisor.stop(waiting.id)  # else it would begin as soon as the other has ended
    supervisor.stop(run.id)
    await_status(run, RunStatus.STOPPED)


def test_a_shell_that_waits_for_its_turn_stands_in_the_same_queue_and_can_be_cancelled(supervisor, start_process):
    first = supervisor.start(settings())
    await_status(first, RunStatus.RUNNING)
    shells = Run.create(supervisor.runs_dir, settings())
    process = start_process(*FAKE, "train", "--run", shells.path)
    await_true(lambda: shells.launch().get("waiting"), 30, "the waiting shell")
    pages = supervisor.start(settings())
    assert supervisor.queued() == [shells, pages]
    supervisor.stop(shells.id)
    assert supervisor.queued() == [pages]
    assert process.wait(20) == 0


def test_a_queued_run_that_is_cancelled_counts_as_stopped_and_holds_nothing_up(supervisor: Supervisor):
    first, second, third = (supervisor.start(settings()) for _ in range(3))
    await_status(first, RunStatus.RUNNING)
    supervisor.stop(second.id)
    assert second.state().status == RunStatus.STOPPED
    assert second.state().end["error"] == "taken out of the queue"
    with pytest.raises(RunError, match="it is stopped"):
        supervisor.stop(second.id)
    supervisor.stop(first.id)
    await_true(lambda: supervisor.tick() or third.state().status == RunStatus.RUNNING, 30, "the turn of the third")
    assert second.state().status == RunStatus.STOPPED


def test_a_run_outlives_the_server_that_started_it(supervisor: Supervisor, runs_dir: Path, start_process):
    server = (
        "import sys; from pathlib import Path; from trainer.config import TrainConfig; from ui.supervisor import *\n"
        "Supervisor(Path(sys.argv[1]), sys.argv[2:]).start(TrainConfig(dataset='shapes', label='obedient'))"
    )
    assert start_process(sys.executable, "-c", server, runs_dir, *FAKE).wait(60) == 0
    (run,) = supervisor.living()
    await_status(run, RunStatus.RUNNING)
    supervisor.stop(run.id)
    await_status(run, RunStatus.STOPPED)


def test_resume_goes_on_in_the_same_directory_with_more_epochs(supervisor: Supervisor, runs_dir: Path):
    run = supervisor.start(settings("quick", epochs=2))
    await_status(run, RunStatus.COMPLETED)
    assert supervisor.resume(run.id, 5) == run
    await_status(run, RunStatus.COMPLETED)
    await_true(lambda: run.state().step.get("epoch") == 5.0, 30, "the second part of the run")
    assert run.config().epochs == 5
    assert len(list(iter_runs(runs_dir))) == 1


@pytest.mark.parametrize("epochs", [1, 2])
def test_resume_without_more_epochs_is_refused_with_both_numbers(supervisor: Supervisor, epochs: int):
    run = supervisor.start(settings("quick", epochs=2))
    await_status(run, RunStatus.COMPLETED)
    with pytest.raises(ConfigError) as refused:
        supervisor.resume(run.id, epochs)
    assert f"{epochs} is not more than the 2" in refused.value.errors["epochs"]
    assert run.state().status == RunStatus.COMPLETED


@pytest.mark.parametrize("epochs", [None, "5", 2.5, [5], True, 10**9])
def test_resume_refuses_what_is_no_number_of_epochs(supervisor: Supervisor, epochs):
    run = supervisor.start(settings("quick"))
    await_status(run, RunStatus.COMPLETED)
    with pytest.raises(ConfigError) as refused:
        supervisor.resume(run.id, epochs)
    assert list(refused.value.errors) == ["epochs"]


def test_a_run_at_work_or_in_the_queue_cannot_be_resumed(supervisor: Supervisor):
    living, queued = supervisor.start(settings()), supervisor.start(settings())
    with pytest.raises(RunError, match="is running"):
        supervisor.resume(living.id, 20)
    with pytest.raises(RunError, match="is queued already"):
        supervisor.resume(queued.id, 20)
    assert queued.config().epochs == settings().epochs


def test_a_resumed_run_waits_in_the_queue_while_another_is_at_work(supervisor: Supervisor):
    run = supervisor.start(settings("quick", epochs=1))
    await_status(run, RunStatus.COMPLETED)
    await_true(lambda: not list(runs_at_work(supervisor.runs_dir)), 10, "the end of its process")
    other = supervisor.start(settings())
    await_status(other, RunStatus.RUNNING)
    supervisor.resume(run.id, 2)
    assert run.state().status == RunStatus.QUEUED
    supervisor.stop(other.id)
    await_true(lambda: supervisor.tick() or run.state().step.get("epoch") == 2.0, 30, "the second part of the run")


def test_a_resumed_trainer_that_dies_at_once_has_failed(supervisor: Supervisor, runs_dir: Path):
    run = supervisor.start(settings("quick", epochs=1))
    await_status(run, RunStatus.COMPLETED)
    run.write_config(run.config().changed(label="broken"))
    supervisor.resume(run.id, 2)
    await_status(run, RunStatus.FAILED)


@pytest.mark.parametrize("run_id", [None, 7, "", "latest", "..", "/etc", "20260101-000000-single-abcd", ["x"]])
def test_only_ids_of_runs_here_are_taken(supervisor: Supervisor, run_id):
    with pytest.raises(RunError, match="there is no run"):
        supervisor.run(run_id)


def test_a_trainer_sees_no_secret_and_no_other_group(monkeypatch: pytest.MonkeyPatch):
    for name in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "PARALLEL_TRAINER_AUTH", "MY_PASSWORD", "RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    seen = trainer_environment()
    assert "x" not in seen.values()
    assert seen["CUDA_VISIBLE_DEVICES"] == "1"
    assert seen["PYTHONUNBUFFERED"] == "1"


def test_the_last_line_is_the_last_with_something_in_it_after_the_offset(tmp_path: Path):
    log = tmp_path / "train.log"
    assert last_line(log) == ""
    log.write_text("old\n")
    assert last_line(log, 4) == ""
    log.write_text("old\nfirst\nlast \n\n")
    assert last_line(log, 4) == "last"
