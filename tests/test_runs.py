"""A run's status is what its files and its living processes say, and nothing else."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import ConfigError, TrainConfig
from trainer.event_reader import events_of
from trainer.files import read_json
from trainer.processes import identity
from trainer.queue import has_trainer
from trainer.run_list import list_runs
from trainer.runs import Run, RunError, RunStatus, event_writer, write_atomic
from trainer.stop import stop_run


@pytest.fixture
def run(runs_dir: Path) -> Run:
    return Run.create(runs_dir, TrainConfig(dataset="shapes", label="mine"))


STATUS_TABLE = [
    # what the process said, whether it is still there, what the run is then
    ([], False, "queued"),
    (["claim"], True, "starting"),
    (["claim", "progress"], True, "starting"),
    (["claim", "start"], True, "running"),
    (["claim", "stop"], True, "stopping"),
    (["claim", "start", "stop"], True, "stopping"),
    (["claim", "start", "end:completed"], True, "completed"),
    (["claim", "start", "end:completed"], False, "completed"),
    (["claim", "start", "end:stopped", "stop"], False, "stopped"),
    (["claim", "start", "end:failed"], False, "failed"),
    (["claim", "end:failed"], False, "failed"),
    (["claim", "start", "end:diverged"], False, "diverged"),
    (["claim"], False, "interrupted"),
    (["claim", "start"], False, "interrupted"),
    (["claim", "start", "stop"], False, "interrupted"),
    (["claim", "start", "end:running"], False, "interrupted"),
    (["claim", "start", "end:nonsense"], False, "interrupted"),
]


@pytest.mark.parametrize(("words", "is_there", "status"), STATUS_TABLE, ids=lambda value: str(value))
def test_the_status_follows_from_the_facts(run: Run, actor, words: list[str], is_there: bool, status: str):
    if words:
        actor(run, *words, leave=not is_there)
    assert run.state().status == status
    assert list_runs(run.path.parent)[0]["status"] == status


def test_every_status_is_in_the_table():
    assert {status for _, _, status in STATUS_TABLE} == {str(status) for status in RunStatus}


def test_a_killed_trainer_is_interrupted_and_says_what_that_means(run: Run, actor):
    process = actor(run, "claim", "start")
    process.kill()
    process.wait(10)
    state = run.state()
    assert state.status == "interrupted"
    assert "killed" in state.error


def test_a_second_claim_is_refused_and_names_the_first(run: Run, actor):
    process = actor(run, "claim")
    with pytest.raises(RunError, match=f"already started, by process {process.pid}"):
        run.claim()
    assert run.identity() == identity(process.pid)
    assert not list(run.path.glob(".process*"))


def test_of_rival_claims_at_once_one_wins(run: Run, start_process):
    code = (
        "import sys; from pathlib import Path; from trainer.runs import Run, RunError\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n    Run(Path(sys.argv[1])).claim(); print('mine')\nexcept RunError:\n    print('refused')"
    )
    rivals = [start_process(sys.executable, "-c", code, run.path, stdin=-1, stdout=-1) for _ in range(4)]
    for rival in rivals:
        assert rival.stdout.readline() == "ready\n"
    for rival in rivals:
        rival.stdin.write("go\n")
        rival.stdin.flush()
    assert sorted(rival.stdout.readline() for rival in rivals) == ["mine\n"] + ["refused\n"] * 3


def test_a_reused_pid_is_not_the_run(run: Run):
    record = {"pid": os.getpid(), "start": "another boot:1", "events_offset": 0}
    (run.path / "process.json").write_text(json.dumps(record))
    assert run.state().status == "interrupted"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": "1"}', '{"pid": 1}', "[" * 100_000])
def test_a_damaged_process_file_is_no_living_process(run: Run, text: str):
    (run.path / "process.json").write_text(text)
    assert not run.state().status.living


def test_a_requeued_run_starts_anew_and_keeps_its_past(run: Run, actor):
    actor(run, "claim", "start", "rank:0", "stop", "end:stopped", leave=True)
    (run.path / ".last.pt.123").write_text("a torso")
    run.requeue()
    assert run.state().status == "queued"
    assert not run.stop_path.exists()
    assert not run.rank_records()
    assert not list(run.path.glob(".*.pt.*"))
    actor(run, "claim")
    assert run.state().status == "starting", "the `end` of the first life is not that of the second"
    assert run.state().end["status"] == "stopped"


def test_a_claim_after_a_torn_line_does_not_inherit_the_end_before_it(run: Run, actor):
    actor(run, "claim", "start", "end:stopped", leave=True)
    with run.events_path.open("ab") as file:
        file.write(b'{"kind":"st')
    run.requeue()
    actor(run, "claim", "start")
    assert run.state().status == "running"


@pytest.mark.parametrize("act", [Run.requeue, Run.prepare_resume, Run.delete])
def test_a_run_at_work_is_neither_resumed_nor_deleted(run: Run, actor, act: Callable):
    actor(run, "claim", "start")
    with pytest.raises(RunError, match="running"):
        act(run)
    assert run.state().status == "running"


def test_a_run_whose_ranks_live_on_is_not_deleted(run: Run, actor):
    actor(run, "claim", "start", leave=True)
    process = actor(run, "rank:1")
    with pytest.raises(RunError, match="running"):
        run.delete()
    process.stdin.close()
    process.wait(10)
    run.delete()
    assert list(run.path.parent.iterdir()) == []


def completed(run: Run, epochs: float) -> Run:
    run.claim()
    events = event_writer(run)
    events.write("start", step=0)
    events.write("step", step=1, epoch=epochs)
    events.write("end", status="completed")
    events.close()
    return run


def test_a_completed_run_is_resumed_only_to_more_epochs(run: Run):
    completed(run, run.config().epochs)
    with pytest.raises(ConfigError, match="10 is not more than the 10"):
        run.prepare_resume()
    run.prepare_resume(epochs=20)
    assert run.state().status == "queued"
    assert run.config() == TrainConfig(dataset="shapes", label="mine", epochs=20)


@pytest.mark.parametrize("words", [[], ["end:stopped"], ["end:failed"], ["end:diverged"]], ids=str)
def test_a_run_cut_short_after_its_last_epoch_is_resumed_to_its_end(run: Run, actor, words: list[str]):
    actor(run, "claim", "start", *words, leave=True)
    events = event_writer(run)
    events.write("step", step=1, epoch=float(run.config().epochs))
    events.close()
    assert run.state().suggested_epochs() == run.config().epochs
    with pytest.raises(ConfigError, match="9 is not more than the 10"):
        run.prepare_resume(epochs=run.config().epochs - 1)
    run.prepare_resume()
    assert run.state().status == "queued"


def test_a_resume_to_impossible_epochs_changes_nothing(run: Run):
    completed(run, 10)
    with pytest.raises(ConfigError, match="epochs"):
        run.prepare_resume(epochs=10**9)
    assert run.state().status == "completed"
    assert run.config().epochs == 10


@pytest.mark.parametrize("kind", ["start", "step", "eval", "end"])
def test_keys_that_are_null_count_as_missing(run: Run, kind: str):
    event = dict.fromkeys(("step", "world_size", "devices", "epoch", "status"), None)
    lines = [{"kind": kind, "accuracy": 0.5, **event}, {"kind": "start", **event}]
    run.events_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list_runs(run.path.parent)[0]["step"] == 0


def test_a_run_whose_settings_are_away_for_a_moment_is_there(run: Run):
    os.rename(run.path / "config.json", run.path / "config.json~")
    assert run.is_there
    shutil.rmtree(run.path)
    assert not run.is_there


def test_a_run_finds_its_pictures_from_any_working_directory(runs_dir: Path, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    configs = [TrainConfig(dataset="images", data_dir=place) for place in ("pictures", "~/pictures", "/pictures")]
    found = [Run.create(runs_dir, config).config().data_dir for config in configs]
    assert found == [str(tmp_path / "pictures"), "~/pictures", "/pictures"]


def test_a_queued_run_is_not_changed_by_a_resume_that_is_refused(run: Run):
    with pytest.raises(RunError, match="queued already"):
        run.prepare_resume(epochs=77)
    assert run.config().epochs == TrainConfig().epochs


def test_the_best_accuracy_is_the_highest_so_far(run: Run):
    events = event_writer(run)
    for accuracy in (0.5, 0.7, 0.6):
        events.write("eval", accuracy=accuracy)
    events.close()
    assert run.state().best_accuracy == 0.7


def test_a_state_is_updated_by_what_is_new_and_begins_anew_with_a_cut_file(run: Run):
    state = run.state()
    events = event_writer(run)
    events.write("warning", text="first")
    assert [event["kind"] for _, event in events_of(state.update())] == ["warning"]
    assert state.update() == []
    os.truncate(run.events_path, 0)
    events.write("eval", accuracy=0.1)
    events.close()
    assert [event["kind"] for _, event in events_of(state.update())] == ["eval"]
    assert (state.warnings, state.best_accuracy) == ([], 0.1)


def test_a_run_that_cannot_be_written_is_refused_in_words(tmp_path: Path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunError, match="cannot be written"):
        Run.create(tmp_path / "runs", TrainConfig())


def test_a_failed_replacement_leaves_the_old_text_and_no_draft(tmp_path: Path):
    target = tmp_path / "x.json"
    write_atomic(target, "{}")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(target, "\ud800")
    assert read_json(target) == {}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_copy_of_a_run_at_work_is_not_at_work_and_whoever_stops_it_leaves_the_original_alone(
    run: Run, actor, tmp_path: Path
):
    process = actor(run, "claim", "start", "rank:0", "deaf")
    copy = Run(tmp_path / "backup" / run.id)
    shutil.copytree(run.path, copy.path)
    assert run.state().status == "running"
    assert copy.state().status == "interrupted"
    assert copy.rank_identities() == []
    assert stop_run(copy, grace=0.1) == "interrupted"
    assert run.state().status == "running"
    assert process.poll() is None
    copy.requeue()
    assert copy.state().status == "queued"


def test_a_copy_of_a_run_that_waits_waits_for_itself(runs_dir: Path, tmp_path: Path):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"), waits_here=True)
    copy = Run(tmp_path / "backup" / run.id)
    shutil.copytree(run.path, copy.path)
    assert has_trainer(run)
    assert not has_trainer(copy)
    assert copy.state().status == "queued"
    assert copy.queued_at == run.queued_at


def test_a_renamed_directory_keeps_its_process(run: Run, actor):
    actor(run, "claim", "start")
    renamed = Run(run.path.rename(run.path.with_name("20200101-000000-single-abcd")))
    assert renamed.state().status == "running"
