"""Exported files are whole or absent, usable by themselves or refused in a sentence; one comes with the program."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from tests.conftest import small_files
from trainer.models import build_model
from trainer.predict import Predictor
from trainer.weights import PRETRAINED_FILE, WeightsError, read_header, read_weights, write_weights

CARD = PRETRAINED_FILE.with_name("README.md")
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def untrained(model_name: str = "fast") -> Predictor:
    torch.manual_seed(0)
    normalisation = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    model = build_model(model_name, 3).eval()
    return Predictor(model, model_name, ["red", "green", "blue"], normalisation, 7, Path("nowhere"))


def pictures() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)


def test_a_file_holds_all_that_is_needed_to_use_it(tmp_path: Path):
    written, path = untrained(), tmp_path / "model.safetensors"
    write_weights(written, path, note="three tints")
    read = read_weights(path)
    assert (read.name, read.classes, read.normalisation, read.step) == (
        "fast",
        written.classes,
        written.normalisation,
        7,
    )
    assert read_header(path).note == "three tints"
    np.testing.assert_array_equal(read.predict(pictures()), written.predict(pictures()))
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == set(build_model("fast", 3).state_dict())


def test_half_precision_is_that_of_the_file_not_of_the_computing(tmp_path: Path):
    written, path = untrained(), tmp_path / "half.safetensors"
    write_weights(written, path, half=True)
    assert {parameter.dtype for parameter in written.model.parameters()} == {torch.float32}  # left as it was
    read = read_weights(path)
    assert {parameter.dtype for parameter in read.model.parameters()} == {torch.float32}
    np.testing.assert_allclose(read.predict(pictures()), written.predict(pictures()), atol=5e-3)


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path):
    target = tmp_path / "model.safetensors"
    target.write_text("before")
    with small_files(100_000), pytest.raises(OSError, match="File too large"):
        write_weights(untrained(), target)
    assert target.read_text() == "before"
    assert list(tmp_path.glob(".model*")) == []


GOOD = {"model": "fast", "classes": '["a"]', "normalise": '{"mean": [0, 0, 0], "std": [1, 1, 1]}', "step": "1"}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({}, "was not exported by this program"),
        ({**GOOD, "classes": "["}, "was not exported by this program"),
        ({**GOOD, "normalise": '{"mean": [0], "std": [1]}'}, "was not exported by this program"),
        ({**GOOD, "step": "soon"}, "was not exported by this program"),
        ({**GOOD, "model": "os.system"}, "holds a network named 'os.system', which this program does not know"),
        (GOOD, "does not fit its network"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_one_sentence(header: dict[str, str], words: str, tmp_path: Path):
    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(2)}, path, header)
    with pytest.raises(WeightsError, match=words) as error:
        read_weights(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"words", b"\xff" * 100, (2**62).to_bytes(8, "little") + b"{}"])
def test_a_damaged_file_is_refused_in_one_sentence(content: bytes, tmp_path: Path):
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="is damaged or no safetensors file"):
        read_weights(path)
    with pytest.raises(WeightsError, match="there is no file"):
        read_weights(tmp_path / "gone.safetensors")


def test_the_network_that_comes_with_the_program_is_small_and_knows_cifar10():
    header = read_header(PRETRAINED_FILE)
    assert PRETRAINED_FILE.stat().st_size <= 5_000_000
    assert header.model == "fast"
    assert header.classes == CLASSES
    assert "CIFAR-10 (JPEG)" in header.note


def test_its_card_says_what_its_header_says():
    card, header = CARD.read_text(), read_header(PRETRAINED_FILE)
    assert header.note in card
    assert f"step {header.step}" in card
    for words in ("seed", "test-time augmentation", "python -m trainer train --preset fast", "commit"):
        assert words in card


def test_it_answers_from_a_shell_before_anything_is_trained(tmp_path: Path, trainer):
    Image.new("RGB", (50, 40), "blue").save(tmp_path / "blue.png")
    for option in ((), ("--tta",)):
        done = trainer("predict", "pretrained", str(tmp_path / "blue.png"), "--json", *option)
        (result,) = json.loads(done.stdout)
        assert list(result["probabilities"]) == CLASSES
        assert result["label"] in CLASSES
