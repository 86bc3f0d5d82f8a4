"""The command line: exit codes, one JSON document and nothing else, and errors in the words of the settings."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import ROOT
from trainer.__main__ import main
from trainer.config import TrainConfig
from trainer.event_reader import read_events
from trainer.run_list import iter_runs, list_runs
from trainer.runs import Run

SMALL = ["--preset", "smoke", "--max-steps", "2", "--batch-size", "8", "--devices", "cpu", "--label", "for the tests"]
SMALL += ["--precision", "fp32"]  # the precision of predictions
PREDICTION_KEYS = ["file", "label", "probability", "probabilities", "error"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, subprocess.CompletedProcess]:
    """A runs directory with one run of two steps, the cache of its pictures, and what the command said."""
    folder = tmp_path_factory.mktemp("trained")
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "train", *SMALL, "--runs-dir", str(folder / "runs")],
        cwd=ROOT,
        env={**os.environ, "PARALLEL_TRAINER_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=150,
    )
    return folder / "runs", folder / "cache", done


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    return tmp_path / "red.png"


def run_main(capfd: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    try:
        code = main([str(word) for word in argv])
    except SystemExit as leave:  # tyro's own refusals
        code = int(leave.code or 0)
    out, err = capfd.readouterr()
    return code, out, err


def test_train_prints_the_run_first_and_leaves_with_0(trained):
    runs, _, done = trained
    assert done.returncode == 0, done.stderr
    (run,) = iter_runs(runs)
    assert done.stdout.splitlines()[0] == str(run.path)
    assert run.state().status == "completed"
    assert "completed at step 2" in run.log_path.read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--lr", "0"], "lr: 0.0 must be greater than 0"),
        (["--epochs", "2.7"], "epochs: 2.7 must be a whole number"),
        (["--batch-size", "many"], "batch_size: many must be a whole number"),
        (["--lr", "nan"], "lr: nan must be a finite number"),
        (["--optimizer", "adam"], "optimizer: adam must be 'sgd' or 'adamw'"),
        (["--label", "x" * 65], "must have at most 64 characters"),
        (["--warmup", "11"], "warmup: 11.0 is longer than the run, which has epochs = 10"),
        (["--devices", "77"], "devices: there is no GPU 77"),
        (["--parallel", "ddp", "--devices", "cpu", "--batch-size", "9"], "the nearest is 8 or 10"),
        (
            ["--lr=0", "--epochs=x", "--seed=-1"],
            "epochs: x must be a whole number; lr: 0.0 must be",
        ),
        (["--run", "nowhere"], "there is no run 'nowhere'"),
    ],
)
def test_bad_settings_are_refused_in_one_line_before_there_is_a_run(capfd, runs_dir: Path, flags, said: str):
    code, out, err = run_main(capfd, "train", *flags, "--runs-dir", runs_dir)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1
    assert not runs_dir.exists()


def test_a_real_process_says_the_same(trainer, runs_dir: Path):
    done = trainer("train", "--lr", "0", "--runs-dir", str(runs_dir))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: lr: 0.0 must be greater than 0\n"


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["train", "--nonsense"], ["train", "--preset", "nope"], ["stop"]])
def test_words_that_are_no_command_leave_with_2(capfd, argv: list[str]):
    code, out, err = run_main(capfd, *argv)
    assert (code, out) == (2, "")
    assert "--nonsense" not in argv or "--nonsense" in err


@pytest.mark.parametrize("command", ["resume", "stop", "evaluate", "predict", "export"])
@pytest.mark.parametrize("reference", ["20200101-000000-ddp-0000", "latest", "../../etc", "x" * 300])
def test_an_unknown_run_leaves_with_2(capfd, runs_dir: Path, command: str, reference: str):
    images = ["a.png"] if command == "predict" else []
    code, out, err = run_main(capfd, command, reference, *images, "--runs-dir", runs_dir)
    assert (code, out) == (2, "")
    assert re.match("error: there is no run", err)


def test_settings_beside_a_run_that_has_its_own_are_refused(capfd, runs_dir: Path):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    code, _, err = run_main(capfd, "train", "--run", run.path, "--lr", "0.5")
    assert code == 2
    assert err.startswith("error: run: a run has its own settings")
    assert run.state().status == "queued"


def test_a_run_that_fails_leaves_with_1_and_says_why_everywhere(trainer, runs_dir: Path, tmp_path: Path):
    missing = str(tmp_path / "no pictures")
    done = trainer("train", "--dataset", "images", "--data-dir", missing, "--runs-dir", str(runs_dir))
    assert done.returncode == 1
    (run,) = iter_runs(runs_dir)
    end = read_events(run.events_path)[-1]
    assert (end["kind"], end["status"]) == ("end", "failed")
    for text in (done.stdout, run.log_path.read_text(), end["error"]):
        assert missing in text
    assert "Traceback" not in done.stdout + done.stderr


def test_a_run_that_was_claimed_is_not_started_again(capfd, runs_dir: Path):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    run.claim()
    code, _, err = run_main(capfd, "train", "--run", run.path)
    assert code == 2
    assert f"already started, by process {os.getpid()}" in err


def test_an_empty_list_is_an_empty_document(capfd, runs_dir: Path):
    assert run_main(capfd, "list", "--runs-dir", runs_dir, "--json") == (0, "[]\n", "")
    assert run_main(capfd, "list", "--runs-dir", runs_dir) == (0, f"no runs in {runs_dir}\n", "")


def test_a_list_is_one_document(capfd, trained):
    code, out, err = run_main(capfd, "list", "--runs-dir", trained[0], "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == list_runs(trained[0])
    assert json.loads(out)[0]["label"] == "for the tests"


def test_a_list_for_people_has_a_line_for_each_run(capfd, trained):
    _, out, _ = run_main(capfd, "list", "--runs-dir", trained[0])
    title, row = out.splitlines()
    assert title.split()[:2] == ["id", "status"]
    assert "completed" in row
    assert row.index("for the tests") == title.index("label")


def test_predictions_are_one_document_in_the_order_of_the_arguments(capfd, trained, picture: Path, tmp_path: Path):
    (tmp_path / "text.png").write_text("not a picture")
    files = [picture, tmp_path / "text.png", tmp_path / "missing.png", picture]
    code, out, err = run_main(capfd, "predict", "latest", *files, "--runs-dir", trained[0], "--json")
    assert (code, err) == (0, "")
    answers = json.loads(out)
    assert [answer["file"] for answer in answers] == list(map(str, files))
    assert all(list(answer) == PREDICTION_KEYS for answer in answers)
    assert [answer["error"] is None for answer in answers] == [True, False, False, True]
    assert answers[0]["probabilities"][answers[0]["label"]] == answers[0]["probability"]
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1)


def test_predictions_of_a_real_process_are_nothing_but_the_document(trainer, trained, picture: Path):
    done = trainer("predict", "latest", str(picture), "--runs-dir", str(trained[0]), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)) == 1


def test_no_readable_picture_leaves_with_1_and_no_picture_at_all_with_2(capfd, trained, tmp_path: Path):
    runs = trained[0]
    code, out, _ = run_main(capfd, "predict", "latest", tmp_path / "missing.png", "--runs-dir", runs)
    assert code == 1
    assert out.startswith(f"{tmp_path / 'missing.png'}: ")
    assert run_main(capfd, "predict", "latest", "--runs-dir", runs)[0] == 2


def test_an_evaluation_is_one_document_over_all_test_pictures(capfd, trained, monkeypatch: pytest.MonkeyPatch):
    runs, cache, _ = trained
    monkeypatch.setenv("PARALLEL_TRAINER_CACHE", str(cache))
    code, out, err = run_main(capfd, "evaluate", "latest", "--checkpoint", "last", "--runs-dir", runs, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["checkpoint"], result["step"], result["count"], len(result["answers"])) == ("last.pt", 2, 2000, 2000)
    (run,) = iter_runs(runs)
    assert result["accuracy"] == pytest.approx(run.state().evaluation["accuracy"])


def test_a_damaged_checkpoint_leaves_with_1_in_one_line(capfd, trained, picture: Path, tmp_path: Path):
    (run,) = iter_runs(trained[0])
    copy = shutil.copytree(run.path, tmp_path / "runs" / run.id)
    os.truncate(copy / "best.pt", 1000)
    code, out, err = run_main(capfd, "predict", copy, picture, "--json")
    assert (code, out) == (1, "")
    assert "best.pt is damaged" in err
    assert err.count("\n") == 1


def test_weights_are_exported_where_one_asks(capfd, trained, tmp_path: Path):
    target = tmp_path / "weights.safetensors"
    assert run_main(capfd, "export", "latest", "--output", target, "--runs-dir", trained[0]) == (0, f"{target}\n", "")
    from safetensors import safe_open

    with safe_open(target, "pt") as weights:
        assert weights.get_tensor("conv1.weight").shape == (64, 3, 3, 3)
        assert json.loads(weights.metadata()["classes"])[0] == "circle"


def test_an_export_that_cannot_be_written_leaves_with_1(capfd, trained, tmp_path: Path):
    target = tmp_path / "gone" / "weights.safetensors"
    code, _, err = run_main(capfd, "export", "latest", "--output", target, "--runs-dir", trained[0])
    assert code == 1
    assert err.startswith("error: ")


def test_a_completed_run_is_not_resumed_without_more_to_do(capfd, runs_dir: Path):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    run.claim()
    run.events_path.write_text(
        '{"kind": "step", "step": 1, "epoch": 10}\n{"kind": "end", "status": "completed", "time": 1}\n'
    )
    record = json.loads((run.path / "process.json").read_text())
    (run.path / "process.json").write_text(json.dumps({**record, "events_offset": 0}))
    code, _, err = run_main(capfd, "resume", run.id, "--runs-dir", runs_dir)
    assert code == 2
    assert "is not more than" in err


def test_stopping_what_has_ended_says_how_it_ended(capfd, trained):
    (run,) = iter_runs(trained[0])
    assert run_main(capfd, "stop", "latest", "--runs-dir", trained[0]) == (0, f"{run.id}: completed\n", "")


def test_the_help_of_train_has_every_fields_own_words_and_default(capfd):
    code, out, _ = run_main(capfd, "train", "--help")
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())
    assert code == 0
    assert all(len(line) <= 100 for line in out.splitlines())
    for name, field in TrainConfig.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        default = repr(field.default) if field.default == "" else str(field.default)
        assert flag in text
        assert field.description
        assert f"{' '.join(field.description.split())} (default: {default})" in text


def test_the_help_shows_the_presets_own_values(capfd):
    _, out, _ = run_main(capfd, "train", "--preset=smoke", "--help")
    assert "(default: shapes)" in " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())


def test_an_export_over_a_file_of_a_run_is_refused(capfd, trained):
    (run_path,) = (run.path for run in iter_runs(trained[0]))
    for name in ("config.json", "last.pt", "notes"):
        code, _, said = run_main(capfd, "export", run_path, "--output", run_path / name)
        assert (code, said.count("\n")) == (2, 1)
        assert "lies in a run directory" in said
    assert Run(run_path).state().status == "completed"


@pytest.mark.parametrize("command", [("resume",), ("train", "--run")])
def test_a_renamed_run_is_not_trained_outside_the_queue(capfd, runs_dir: Path, command: tuple[str, ...]):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    run.path.rename(runs_dir / "best run")
    code, _, said = run_main(capfd, *command, runs_dir / "best run")
    assert (code, said.count("\n")) == (2, 1)
    assert "was renamed" in said


def test_a_resume_that_this_machine_cannot_place_changes_nothing(capfd, runs_dir: Path):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes", devices="63"))
    run.withdraw("stopped", "taken out of the queue")
    code, _, said = run_main(capfd, "resume", run.path, "--epochs", 20)
    assert code == 2
    assert "devices: " in said
    assert (run.state().status, run.config().epochs) == ("stopped", TrainConfig().epochs)


def test_terminal_codes_in_names_are_not_printed(capfd, trained, picture: Path, tmp_path: Path):
    (run_path,) = (run.path for run in iter_runs(trained[0]))
    odd = tmp_path / "a\x1b[31m\nb.png"
    shutil.copy(picture, odd)
    code, said, _ = run_main(capfd, "predict", run_path, odd)
    assert code == 0
    assert "\x1b" not in said
    assert said.count("\n") == 1
