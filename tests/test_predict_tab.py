"""Predict: whatever is uploaded yields an answer or one sentence, from the network that was asked."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

from tests.page import serve
from trainer.config import TrainConfig
from trainer.runs import Run
from trainer.weights import PRETRAINED
from ui import predictors
from ui.curves import Curves
from ui.predict_answers import NO_PICTURE, STAND_IN, Answers
from ui.predict_view import answer, gallery
from ui.predictors import NEWEST, Examples, Network, choose_network, examples, network_choices


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A runs directory with one run of a few steps, as the trainer leaves it."""
    root = tmp_path_factory.mktemp("trained")
    config = TrainConfig(dataset="shapes", max_steps=2, batch_size=16, epochs=1, label="<i>small</i>", log_every=1)
    run = Run.create(root / "runs", config)
    environment = {**os.environ, "PARALLEL_TRAINER_CACHE": str(root / "cache")}
    argv = [sys.executable, "-m", "trainer", "train", "--run", run.path]
    folder = Path(__file__).parent.parent
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture
def runs(trained: Path, monkeypatch) -> Path:
    monkeypatch.setenv("PARALLEL_TRAINER_CACHE", str(trained / "cache"))
    return trained / "runs"


def tab(runs_dir: Path) -> Answers:
    return Answers(Curves(runs_dir), runs_dir)


def picture(path: Path, size=(64, 48), mode="RGB") -> str:
    Image.new(mode, size, 120).save(path)
    return str(path)


def test_before_anything_is_trained_the_pretrained_network_answers_and_it_is_said(runs_dir, tmp_path):
    made = tab(runs_dir)
    assert STAND_IN in made.shown(None, NEWEST, "best", False)
    shown = made.shown(picture(tmp_path / "a.png"), NEWEST, "best", False)
    assert shown.count("<li>") == 10
    assert "Pretrained: " in shown
    assert "checkpoint" not in shown  # it is a single file
    words = {value: text for text, value in network_choices(made.curves, runs_dir)}
    assert list(words) == [NEWEST, PRETRAINED]
    assert words[NEWEST] == "Pretrained, until a run has trained"
    assert words[PRETRAINED].startswith("Pretrained: fast")


def test_the_pretrained_network_shows_no_shapes_that_it_does_not_know(runs_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PARALLEL_TRAINER_CACHE", str(tmp_path / "cache"))
    assert "It tells apart: airplane, automobile," in gallery(examples(Network()))


def test_it_can_be_chosen_beside_runs_and_then_asks_for_no_checkpoint(runs):
    made = tab(runs)
    assert [made.chosen(choice)[0]["interactive"] for choice in (NEWEST, PRETRAINED)] == [True, False]
    assert network_choices(made.curves, runs)[-1][1] == PRETRAINED


def test_without_the_file_that_should_come_with_the_program_one_sentence_says_so(runs_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(predictors, "PRETRAINED_FILE", tmp_path / "gone.safetensors")
    made = tab(runs_dir)
    shown = made.shown(picture(tmp_path / "a.png"), NEWEST, "best", False)
    assert f"there is no file {tmp_path}/gone.safetensors" in shown
    assert [value for _, value in network_choices(made.curves, runs_dir)] == [NEWEST]
    assert gallery(examples(Network())) == ""


def test_six_views_are_asked_when_they_are_wished_and_it_is_said(runs, tmp_path):
    made, noise = tab(runs), tmp_path / "noise.png"
    Image.effect_noise((32, 32), 90).convert("RGB").save(noise)
    once, six = (made.predict(str(noise), tta=tta) for tta in (False, True))
    assert (once["tta"], six["tta"]) == (False, True)
    assert once["probabilities"] != six["probabilities"]
    assert "six views, " in made.shown(str(noise), NEWEST, "best", True)
    assert "six views" not in made.shown(str(noise), NEWEST, "best", False)


def test_an_answer_has_a_bar_for_every_class_the_picture_that_was_seen_and_the_time(runs, tmp_path):
    shown = tab(runs).shown(picture(tmp_path / "a.png"), NEWEST, "best", False)
    assert shown.count("<li>") == 10
    assert "data:image/png;base64," in shown
    assert re.search(r"\d ms on one CPU thread", shown)
    assert "&lt;i&gt;small&lt;/i&gt;" in shown
    assert "<i>small" not in shown


def test_it_answers_what_the_command_line_answers(runs, tmp_path):
    from trainer.predict import load_predictor, predict_files

    path = picture(tmp_path / "a.png")
    found = tab(runs).predict(path)
    run = choose_network(Curves(runs), runs, NEWEST).run
    expected = predict_files(load_predictor(run, "best"), [Path(path)])[0]
    assert found["label"] == expected["label"]
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
    assert sum(found["probabilities"].values()) == pytest.approx(1)


@pytest.mark.parametrize("content", [b"", b"words", b"<svg/>", b"\x89PNG\r\n\x1a\nbroken"])
def test_what_is_no_picture_gets_one_sentence(runs, tmp_path, content):
    path = tmp_path / "upload.png"
    path.write_bytes(content)
    made = tab(runs)
    shown = made.shown(str(path), NEWEST, "best", False)
    assert "This file cannot be used" in shown
    assert str(tmp_path) not in shown
    with pytest.raises(gr.Error):
        made.predict(str(path))


def test_a_damaged_checkpoint_gets_one_sentence(runs, tmp_path):
    copy = tmp_path / "runs" / next(runs.glob("2*")).name
    copy.mkdir(parents=True)
    for file in next(runs.glob("2*")).glob("*.*"):
        (copy / file.name).write_bytes(file.read_bytes())
    for name in ("best.pt", "last.pt"):
        with (copy / name).open("r+b") as file:
            file.seek(1000)
            file.write(b"????")
    shown = tab(copy.parent).shown(picture(tmp_path / "a.png"), NEWEST, "best", False)
    assert "No answer" in shown
    assert "is damaged" in shown


@pytest.mark.parametrize("run_id", [None, 7, "", "../../etc", "20200101-000000-ddp-0000", ["latest"]])
def test_ids_that_name_no_run_are_no_run(runs, run_id):
    assert choose_network(Curves(runs), runs, run_id) is None


def test_newest_follows_the_newest_run_that_has_a_checkpoint(runs, tmp_path):
    curves = Curves(runs)
    chosen = choose_network(curves, runs, NEWEST)
    later = Run.create(runs, TrainConfig(dataset="shapes"))
    try:
        assert choose_network(curves, runs, NEWEST) == chosen
        assert [value for _, value in network_choices(curves, runs)] == [NEWEST, chosen.id, PRETRAINED]
        (later.path / "last.pt").touch()
        assert choose_network(curves, runs, NEWEST) == Network(later)
    finally:
        later.delete()


def test_a_network_is_loaded_once_and_again_when_its_file_changes(runs):
    loaded = tab(runs).predictors
    network = choose_network(Curves(runs), runs, NEWEST)
    first, _ = loaded.load(network, "best")
    assert loaded.load(network, "best")[0] is first
    os.utime(network.path("best"))
    assert loaded.load(network, "best")[0] is not first


def test_without_a_best_checkpoint_the_last_one_answers_and_it_is_said(runs, tmp_path):
    best = choose_network(Curves(runs), runs, NEWEST).path("best")
    aside = best.rename(tmp_path / "aside")
    try:
        assert "last checkpoint (there is no best one" in tab(runs).shown(
            picture(tmp_path / "a.png"), NEWEST, "best", False
        )
    finally:
        aside.rename(best)


def test_examples_are_test_pictures_of_the_run_one_a_class(runs):
    found = examples(choose_network(Curves(runs), runs, NEWEST))
    assert found.is_own
    assert len(found.pictures) == len(found.names) == 10
    assert "of its data set" in gallery(found)
    assert not examples(None).is_own


def test_names_of_classes_are_text():
    hostile = "<img src=x onerror=alert(1)>"
    seen = np.zeros((32, 32, 3), np.uint8)
    found = {"label": hostile, "probability": 1.0, "probabilities": {hostile: 1.0}}
    found |= {"checkpoint": "best", "step": 1, "tta": False}
    for shown in (
        answer(seen, {**found, "milliseconds": 1.0}, hostile, "best"),
        gallery(Examples([seen], [hostile], True)),
    ):
        assert "<img src=x" not in shown


@pytest.fixture(scope="module")
def site(trained: Path) -> Iterator[str]:
    with serve(trained) as server:
        yield server.url


def test_programs_can_ask_by_api_and_get_sentences(site, tmp_path):
    client = Client(site, verbose=False)
    try:
        found = client.predict(handle_file(picture(tmp_path / "a.png")), NEWEST, "last", True, api_name="/predict")
        assert len(found["probabilities"]) == 10
        assert (found["checkpoint"], found["tta"]) == ("last", True)
        (tmp_path / "words.png").write_text("words")
        with pytest.raises(AppError, match="not a picture"):
            client.predict(handle_file(str(tmp_path / "words.png")), NEWEST, "best", False, api_name="/predict")
        outside = {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}
        for forged in (outside, {"path": "/etc/hostname"}):
            with pytest.raises(AppError):
                client.predict(forged, NEWEST, "best", False, api_name="/predict")
    finally:
        client.close()


@pytest.mark.browser
def test_an_example_and_an_upload_are_answered_in_the_page(site, page, tmp_path):
    page.goto(site)
    page.get_by_role("tab", name="Predict").click()
    page.locator("#predict-result").get_by_text(NO_PICTURE[0]).wait_for()
    page.locator("#examples button").nth(3).click()
    page.locator(".predict-answer").wait_for()
    assert page.locator(".predict-bars li").count() == 10
    assert page.locator("#examples button span").nth(3).inner_text() == "frame"
    page.get_by_role("radio", name="Last").check()
    page.locator(".predict-source", has_text="last checkpoint").wait_for()
    (tmp_path / "no picture.png").write_text("words")
    page.locator("#predict-image").get_by_label("Remove Image").click()
    page.locator("#predict-result").get_by_text(NO_PICTURE[0]).wait_for()
    page.locator("#predict-image input[type=file]").set_input_files(tmp_path / "no picture.png")
    page.locator("#predict-result").get_by_text("The file is not a picture").wait_for()
    page.locator("#predict-image").get_by_label("Remove Image").click()
    page.locator("#predict-image input[type=file]").set_input_files(picture(tmp_path / "deep.png", mode="I;16"))
    page.locator(".predict-answer").wait_for()


def test_reading_and_answering_is_quick(runs, tmp_path):
    buffer = io.BytesIO()
    Image.effect_noise((3000, 2000), 50).convert("RGB").save(buffer, "JPEG")
    (tmp_path / "photo.jpg").write_bytes(buffer.getvalue())
    assert tab(runs).predict(str(tmp_path / "photo.jpg"))["milliseconds"] < 2000
