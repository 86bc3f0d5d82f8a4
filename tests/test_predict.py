"""Prediction gives what evaluation counted, from any checkpoint, and a sentence where it cannot."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from tests.conftest import small_files
from trainer.checkpoint import CheckpointError
from trainer.config import TrainConfig
from trainer.datasets.prepare import prepare
from trainer.launch import launch
from trainer.models import build_model
from trainer.predict import evaluate_run, export_run, load_predictor
from trainer.runs import Run

NUM_PICTURES = 200


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A network that tells noise with a tint of red, green or blue apart, often but not always."""
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for part, count in (("train", 90), ("test", NUM_PICTURES)):
        for index in range(count):
            colour = index % 3
            pixels = draw.integers(0, 200, (32, 32, 3))
            pixels[:, :, colour] += draw.integers(0, 56)
            folder = root / part / ("red", "green", "blue")[colour]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index:03}.png")
    settings = TrainConfig(dataset="images", data_dir=str(root), epochs=6, batch_size=10, lr=0.03, augment="none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARALLEL_TRAINER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")  # training sets it; the patch puts it back
        run = Run.create(tmp_path_factory.mktemp("runs"), settings)
        run.claim()
        assert launch(run).status == "completed"
    return run


def test_pictures_saved_as_png_get_one_by_one_the_answers_that_evaluation_counts(trained: Run, tmp_path: Path, trainer):
    prepared = prepare(trained.config(), lambda text: None)
    files = [tmp_path / f"{index}.png" for index in range(NUM_PICTURES)]
    for pixels, file in zip(prepared.test_images, files, strict=True):
        Image.fromarray(pixels).save(file)
    counted = evaluate_run(trained)
    assert counted["count"] == NUM_PICTURES
    assert len(set(counted["answers"])) == 3  # a network that always says the same would pass otherwise

    done = trainer("predict", str(trained.path), *map(str, files), "--json")
    results = json.loads(done.stdout)
    assert [result["file"] for result in results] == [str(file) for file in files]
    assert not [result for result in results if result["error"]]
    assert [result["label"] for result in results] == [prepared.classes[answer] for answer in counted["answers"]]


def test_probabilities_cover_all_classes_and_add_up(trained: Run):
    predictor = load_predictor(trained, "last")
    rows = predictor.predict(np.zeros((3, 32, 32, 3), dtype=np.uint8))
    assert rows.shape == (3, 3)
    assert np.allclose(rows.sum(1), 1)


def test_six_views_are_an_option_and_counted_apart(trained: Run, trainer):
    plain, averaged = evaluate_run(trained), evaluate_run(trained, tta=True)
    assert (plain["tta"], averaged["tta"]) == (False, True)
    assert plain["loss"] != averaged["loss"]
    done = trainer("evaluate", str(trained.path), "--tta")
    assert f"six views a picture: {averaged['accuracy']:.2%} of {averaged['count']} right" in done.stdout


def test_a_file_that_is_no_picture_gets_a_sentence_and_the_others_an_answer(trained: Run, tmp_path: Path, trainer):
    (tmp_path / "text.png").write_text("no picture")
    Image.new("RGBA", (60, 40), "red").save(tmp_path / "red.png")
    names = [str(tmp_path / name) for name in ("text.png", "red.png", "missing.png")]
    done = trainer("predict", str(trained.path), *names, "--json")
    text, red, missing = json.loads(done.stdout)
    assert done.returncode == 0
    assert text["error"]
    assert text["label"] is None
    assert red["error"] is None
    assert red["label"] in load_predictor(trained).classes
    assert missing["error"] == "The file cannot be read: No such file or directory."


def test_a_run_without_a_checkpoint_says_when_there_will_be_one(runs_dir: Path):
    run = Run.create(runs_dir, TrainConfig())
    with pytest.raises(CheckpointError, match="after the first epoch"):
        load_predictor(run, "best")


def test_a_checkpoint_of_another_network_is_refused(trained: Run, runs_dir: Path):
    from trainer import checkpoint

    state = checkpoint.load(trained.checkpoint_path("best"))
    run = Run.create(runs_dir, trained.config())
    checkpoint.save(run.checkpoint_path("best"), {**state, "model": build_model("resnet9", 3).state_dict()})
    with pytest.raises(CheckpointError, match=r"best\.pt does not fit"):
        load_predictor(run, "best")


def test_a_damaged_checkpoint_is_refused(trained: Run, runs_dir: Path):
    run = Run.create(runs_dir, trained.config())
    shutil.copy(trained.checkpoint_path("best"), run.path)
    shutil.copy(trained.path / "best.pt.sha256", run.path)
    data = bytearray(run.checkpoint_path("best").read_bytes())
    data[len(data) // 2] ^= 1
    run.checkpoint_path("best").write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        load_predictor(run, "best")


def test_a_damaged_best_one_names_another_that_can_be_used_and_how(trained: Run, runs_dir: Path, trainer):
    run = Run.create(runs_dir, trained.config())
    for path in trained.path.glob("*.pt*"):
        shutil.copy(path, run.path)
    os.truncate(run.checkpoint_path("best"), 1000)
    picture = runs_dir / "a.png"
    Image.new("RGB", (32, 32)).save(picture)
    for command in (("predict", str(run.path), str(picture)), ("evaluate", str(run.path)), ("export", str(run.path))):
        done = trainer(*command)
        assert done.returncode == 1
        assert done.stderr == (
            f"error: {run.path}/best.pt is damaged: its SHA-256 is not the one noted beside it; "
            "last.pt of this run can be used: choose it with --checkpoint last\n"
        )
    assert trainer("predict", str(run.path), str(picture), "--checkpoint", "last").returncode == 0
    os.truncate(run.checkpoint_path("last"), 1000)
    with pytest.raises(CheckpointError, match="--checkpoint previous"):
        load_predictor(run, "best")
    assert load_predictor(run, "previous").step < load_predictor(trained, "last").step
    os.truncate(run.checkpoint_path("previous"), 1000)
    with pytest.raises(CheckpointError, match=r"noted beside it$"):
        load_predictor(run, "best")


def test_an_export_that_fails_leaves_what_was_there(trained: Run, tmp_path: Path):
    target = tmp_path / "model.safetensors"
    target.write_text("before")
    with small_files(100_000), pytest.raises(OSError, match="File too large"):
        export_run(trained, "best", target)
    assert target.read_text() == "before"
    assert list(tmp_path.glob(".model*")) == []


def test_exported_weights_carry_what_is_needed_to_use_them(trained: Run, tmp_path: Path):
    export_run(trained, "best", tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        header = file.metadata()
        assert set(file.keys()) == set(build_model("tutorial", 3).state_dict())
    assert header["model"] == "tutorial"
    assert sorted(json.loads(header["classes"])) == ["blue", "green", "red"]
    assert set(json.loads(header["normalise"])) == {"mean", "std"}


def test_half_an_export_is_half_as_large_and_gives_nearly_the_same_answers(trained: Run, tmp_path: Path, trainer):
    export_run(trained, "best", tmp_path / "whole.safetensors")
    done = trainer("export", str(trained.path), "--half", "--output", str(tmp_path / "half.safetensors"))
    assert done.stdout.strip().endswith("half.safetensors")
    whole, half = (tmp_path / f"{name}.safetensors" for name in ("whole", "half"))
    assert half.stat().st_size < 0.51 * whole.stat().st_size
    predictor = load_predictor(trained, "best")
    pictures = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    expected = predictor.predict(pictures)
    predictor.model.load_state_dict(load_file(half))
    np.testing.assert_allclose(predictor.predict(pictures), expected, atol=5e-3)
