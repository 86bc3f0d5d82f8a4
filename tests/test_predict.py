"""Prediction gives what evaluation counted, from any checkpoint, and a sentence where it cannot."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainer.checkpoint import CheckpointError
from trainer.config import TrainConfig
from trainer.datasets.prepare import prepare
from trainer.launch import launch
from trainer.models import build_model
from trainer.predict import evaluate, find_predictor, load_predictor
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
    counted = evaluate(load_predictor(trained), trained.config())
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
    plain, averaged = (evaluate(load_predictor(trained), trained.config(), tta) for tta in (False, True))
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


def test_an_exported_file_answers_like_the_run_that_it_came_from(trained: Run, tmp_path: Path, trainer):
    whole, half = (str(tmp_path / f"{name}.safetensors") for name in ("whole", "half"))
    assert trainer("export", str(trained.path), "--output", whole).stdout.strip() == whole
    trainer("export", str(trained.path), "--half", "--output", half)
    assert os.path.getsize(half) < 0.51 * os.path.getsize(whole)
    data = ("--dataset", "images", "--data-dir", trained.config().data_dir)
    of_run, of_file = (
        json.loads(trainer("evaluate", *args, "--json").stdout) for args in ([trained.path], [whole, *data])
    )
    assert of_file.pop("checkpoint") == "whole.safetensors"
    assert of_run.pop("checkpoint") == "best.pt"
    assert of_file == of_run

    pictures = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    expected = load_predictor(trained).predict(pictures)
    found, run = find_predictor(tmp_path, half)
    assert run is None
    np.testing.assert_allclose(found.predict(pictures), expected, atol=5e-3)


def test_a_network_is_counted_only_on_a_data_set_of_its_own_classes(trained: Run, trainer):
    done = trainer("evaluate", str(trained.path), "--dataset", "shapes")
    assert done.returncode == 1
    assert "best.pt was trained on other classes than the data set shapes has now" in done.stderr
    done = trainer("evaluate", str(trained.path), "--dataset", "mnist")
    assert done.returncode == 2
    assert done.stderr.startswith("error: dataset: ")


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_what_names_no_network_is_a_bad_argument(command: str, tmp_path: Path, trainer):
    done = trainer(command, "20200101-000000-ddp-0000", *(["a.png"] if command == "predict" else []))
    assert done.returncode == 2
    assert "there is no run" in done.stderr
