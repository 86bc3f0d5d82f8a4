"""Starting, stopping, resuming and adopting runs, with real processes and a trainer that does not train."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, await_true
from trainer.config import ConfigError, TrainConfig
from trainer.processes import alive
from trainer.runs import Run, RunError, RunStatus, iter_runs
from ui.supervisor import Supervisor, last_line, trainer_environment

FAKE = (sys.executable, str(ROOT / "tests" / "fake_trainer.py"))


def settings(behaviour: str = "obedient", **values) -> TrainConfig:
    return TrainConfig(dataset="shapes", label=behaviour, **values)


@pytest.fixture
def supervisor(runs_dir: Path) -> Iterator[Supervisor]:
    """A supervisor of the fake trainer; what it leaves at work is killed, by pid, after the test."""
    yield Supervisor(runs_dir, FAKE)
    for run in iter_runs(runs_dir):
        known = run.identity()
        if known and alive(known):
            psutil.Process(known[0]).kill()
            await_true(lambda known=known: not alive(known), 10, "the end of a killed trainer")


def await_status(run: Run, *wanted: RunStatus, seconds: float = 30) -> None:
    await_true(lambda: run.state().status in wanted, seconds, f"status {' or '.join(wanted)}")


def test_a_started_run_is_at_work_at_once_and_runs_in_a_session_of_its_own(supervisor: Supervisor):
    run = supervisor.start(settings())
    assert run.state().status.living
    assert supervisor.living() == run
    await_status(run, RunStatus.RUNNING)
    known = run.identity()
    assert known
    assert os.getsid(known[0]) == known[0]


def test_a_second_start_is_refused_and_names_the_run_at_work(supervisor: Supervisor, runs_dir: Path):
    run = supervisor.start(settings())
    with pytest.raises(RunError, match=run.id):
        supervisor.start(settings())
    assert len(list(iter_runs(runs_dir))) == 1


@pytest.mark.parametrize("num_servers", [1, 4])
def test_starts_at_the_same_moment_start_one_run(supervisor: Supervisor, runs_dir: Path, num_servers: int):
    servers = [supervisor, *(Supervisor(runs_dir, FAKE) for _ in range(num_servers - 1))]
    together = threading.Barrier(8)
    refusals: list[str] = []

    def press(server: Supervisor) -> None:
        together.wait(10)
        try:
            server.start(settings())
        except RunError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=press, args=(servers[i % num_servers],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    (run,) = iter_runs(runs_dir)
    assert len(refusals) == 7
    assert all(run.id in text for text in refusals)


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
    assert supervisor.living() is None


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
    assert supervisor.living() is None


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
    assert supervisor.living() == run
    with pytest.raises(RunError, match=run.id):
        supervisor.start(settings())
    supervisor.stop(run.id)
    await_status(run, RunStatus.STOPPED)


def test_a_run_outlives_the_server_that_started_it(supervisor: Supervisor, runs_dir: Path, start_process):
    server = (
        "import sys; from pathlib import Path; from trainer.config import TrainConfig; from ui.supervisor import *\n"
        "Supervisor(Path(sys.argv[1]), sys.argv[2:]).start(TrainConfig(dataset='shapes', label='obedient'))"
    )
    assert start_process(sys.executable, "-c", server, runs_dir, *FAKE).wait(60) == 0
    run = supervisor.living()
    assert run
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


def test_a_run_at_work_cannot_be_resumed(supervisor: Supervisor):
    run = supervisor.start(settings())
    with pytest.raises(RunError, match="is training"):
        supervisor.resume(run.id, 20)


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
