"""The list of runs is what the directory holds, whatever else lies there, and one name means one run."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from tests.test_runs import completed
from trainer.config import TrainConfig
from trainer.run_list import iter_runs, list_runs, open_run
from trainer.runs import RUN_ID, Run, RunError

ROW_KEYS = ["id", "status", "parallel", "devices", "epoch", "step"]
ROW_KEYS += ["best_accuracy", "images_per_second", "started", "label"]


@pytest.fixture
def run(runs_dir: Path) -> Run:
    return Run.create(runs_dir, TrainConfig(dataset="shapes", label="mine"))


HOSTILE = [
    "../../etc",
    "/etc",
    "/etc/passwd",
    "",
    ".",
    "..",
    "x" * 300,
    "a/" * 3000,
    "\0",
    "nope",
    "-h",
    "ü\n",
]


@pytest.mark.parametrize("reference", HOSTILE)
def test_a_reference_to_no_run_is_refused_in_one_sentence(run: Run, reference: str):
    with pytest.raises(RunError, match="there is no run"):
        open_run(run.path.parent, reference)


def test_a_run_is_named_by_id_by_path_or_as_the_latest(run: Run, monkeypatch: pytest.MonkeyPatch):
    for reference in (run.id, str(run.path), f"{run.path}/", os.path.relpath(run.path), "latest"):
        assert open_run(run.path.parent, reference) == run
    monkeypatch.chdir(run.path)
    assert open_run(Path("elsewhere"), ".").id == run.id


def test_there_is_no_latest_where_there_is_no_run(runs_dir: Path):
    with pytest.raises(RunError, match="no run in"):
        open_run(runs_dir, "latest")
    assert list_runs(runs_dir) == []


def test_a_directory_of_runs_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for ask in (list_runs, lambda runs_dir: open_run(runs_dir, "latest")):
        with pytest.raises(RunError, match=r"file cannot be read: Not a directory"):
            ask(tmp_path / "file")


def test_runs_of_one_second_stand_in_the_order_in_which_they_were_made(runs_dir: Path):
    modes = ["single", "ddp", "dp"] * 10
    made = [Run.create(runs_dir, TrainConfig(parallel=mode, batch_size=6)) for mode in modes]
    assert list(iter_runs(runs_dir)) == made[::-1]
    assert open_run(runs_dir, "latest") == made[-1]


def test_strangers_in_the_folder_are_left_alone(run: Run):
    folder = run.path.parent
    (folder / "notes.txt").write_text("mine")
    (folder / "20200101-000000-ddp-00zz").mkdir()
    (folder / "20200101-000000-ddp-0000").write_text("a file")
    (folder / "20200101-000000-ddp-0001").mkdir()  # without settings
    (folder / "20200101-000000-ddp-0002").symlink_to("/nowhere")
    (folder / f".{run.id}").mkdir()
    assert list(iter_runs(folder)) == [run]


@pytest.mark.parametrize("text", ["", "{", '{"epochs": 0}', '{"from_the_future": 1}', "\0"])
def test_a_run_with_unreadable_settings_spoils_no_list(run: Run, text: str):
    other = Run.create(run.path.parent, TrainConfig())
    (other.path / "config.json").write_text(text)
    (row,) = (row for row in list_runs(run.path.parent) if row["id"] == other.id)
    assert (row["status"], row["parallel"], row["label"][:29]) == ("queued", "single", "its settings cannot be read: ")


@pytest.mark.parametrize("name", ["process.json", "launch.json", "ranks/0.json"])
@pytest.mark.parametrize("value", ["null", '"x"', "[1]", "-1", "1e400", "NaN", "{}", "true"])
def test_a_record_with_values_of_other_types_spoils_no_list(run: Run, name: str, value: str):
    run.ranks_path.mkdir()
    keys = ("pid", "start", "started", "queued", "waiting", "events_offset", "devices", "directory", "rank", "step")
    (run.path / name).write_text("{" + ", ".join(f'"{key}": {value}' for key in keys) + "}")
    (row,) = list_runs(run.path.parent)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert run.last_step() == 0
    assert not run.rank_identities()


def test_a_row_has_the_keys_that_were_promised(run: Run):
    completed(run, 10)
    (row,) = list_runs(run.path.parent)
    assert list(row) == ROW_KEYS
    assert (row["status"], row["epoch"], row["step"], row["label"]) == ("completed", 10, 1, "mine")
    assert abs(row["started"] - time.time()) < 60
    assert json.loads(json.dumps(row)) == row


def test_a_queued_row_has_them_too(run: Run):
    (row,) = list_runs(run.path.parent)
    assert list(row) == ROW_KEYS
    assert (row["status"], row["best_accuracy"], row["started"]) == ("queued", None, None)


def test_no_reader_ever_meets_a_run_without_its_settings(runs_dir: Path, start_process):
    code = (
        "import sys; from pathlib import Path; from trainer.config import TrainConfig; from trainer.runs import Run\n"
        "while True:\n    print(Run.create(Path(sys.argv[1]), TrainConfig(dataset='shapes')).id, flush=True)"
    )
    process = start_process(sys.executable, "-c", code, runs_dir, stdout=-1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and sum(1 for _ in iter_runs(runs_dir)) < 200:
        for entry in os.listdir(runs_dir) if runs_dir.exists() else []:
            if not entry.startswith("."):
                assert Run(runs_dir / entry).config() == TrainConfig(dataset="shapes")
    process.kill()
    assert all(RUN_ID.fullmatch(run.id) for run in iter_runs(runs_dir))
