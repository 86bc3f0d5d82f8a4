"""A stop is answered within a second whatever is being done to the data, and leaves nothing half-made."""

import io
import os
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.test_datasets import PREPARE_SHAPES
from tests.test_datasets_cifar10 import Server, config, server  # noqa: F401
from tests.test_datasets_images import archive, files, folder
from trainer.config import TrainConfig
from trainer.datasets import cifar10, store
from trainer.datasets.prepare import prepare

SHAPES = TrainConfig(dataset="shapes")
SECONDS = 1.0


def longest_silence(work: Callable[[store.Progress], object]) -> tuple[float, set[str]]:
    """The longest time in which a stop would not have been noticed, and what was told."""
    told: set[str] = set()
    last, longest = time.monotonic(), 0.0

    def progress(text: str) -> None:
        nonlocal last, longest
        told.add(text)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()

    work(progress)
    return max(longest, time.monotonic() - last), told


def stopped_at(text: str, settings: TrainConfig) -> None:
    """Prepare, and stop when `text` is told; that must come through at once and leave nothing in the cache."""
    asked = 0.0

    def progress(said: str) -> None:
        nonlocal asked
        if said.startswith(text):
            asked = time.monotonic()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(settings, progress)
    assert time.monotonic() - asked < SECONDS
    root = store.cache_root()
    assert not root.exists() or list(root.iterdir()) == []


def large_jpeg() -> bytes:
    """14 million pixels: some tenths of a second to decode."""
    buffer = io.BytesIO()
    Image.effect_noise((3740, 3740), 30).save(buffer, "JPEG", quality=30)
    return buffer.getvalue()


def images(path: Path) -> TrainConfig:
    return TrainConfig(dataset="images", data_dir=str(path))


@pytest.mark.parametrize("text", ["Drawing", "Saving"])
def test_while_shapes_are_drawn_and_saved(text: str):
    stopped_at(text, SHAPES)
    silence, told = longest_silence(lambda progress: prepare(SHAPES, progress))
    assert silence < SECONDS
    assert any(said.startswith(text) for said in told)


def test_while_another_process_prepares_the_same(start_process):
    stuck = PREPARE_SHAPES.replace(
        "lambda text: print(text, flush=True)", "lambda t: (print(t, flush=True), sleep(60))"
    )
    holder = start_process(sys.executable, "-c", "from time import sleep\n" + stuck, stdout=subprocess.PIPE)
    assert holder.stdout.readline().startswith("Drawing")
    begun = time.monotonic()

    def progress(text: str) -> None:
        assert text.startswith("Waiting for another process")
        if time.monotonic() - begun > 1.5:
            raise KeyboardInterrupt

    silence, _ = longest_silence(lambda tell: _until_stopped(lambda text: (tell(text), progress(text))))
    assert silence < SECONDS
    assert not (store.cache_root() / "shapes-1").exists()


def _until_stopped(progress: store.Progress) -> None:
    with pytest.raises(KeyboardInterrupt):
        prepare(SHAPES, progress)


@pytest.mark.parametrize("text", ["Reading pictures", "Saving"])
def test_while_large_pictures_are_decoded(text: str, tmp_path: Path):
    content = files(train=1, test=0) | {f"train/sky/large{i}.jpg": large_jpeg() for i in range(12)}
    top = folder(tmp_path / "p", content)
    stopped_at(text, images(top))
    silence, _ = longest_silence(lambda progress: prepare(images(top), progress))
    assert silence < SECONDS


@pytest.mark.parametrize("ending", [".tar.gz", ".zip"])
def test_while_an_archive_is_looked_through(ending: str, tmp_path: Path):
    top = archive(tmp_path / f"a{ending}", {"notes.bin": bytes(400_000_000), **files()})
    stopped_at("Looking into", images(top))
    silence, _ = longest_silence(lambda progress: prepare(images(top), progress))
    assert silence < SECONDS


def test_while_a_large_folder_is_listed(tmp_path: Path):
    stopped_at("Looking into", images(folder(tmp_path / "p", files())))


@pytest.mark.parametrize("behaviour", ["stall", "silent"])
def test_while_a_server_says_nothing(server: Server, behaviour: str, tmp_path: Path):  # noqa: F811
    server.behaviour = behaviour
    begun = time.monotonic()

    def progress(_text: str) -> None:
        if time.monotonic() - begun > 1.5:
            raise KeyboardInterrupt

    def work(tell: store.Progress) -> None:
        with pytest.raises(KeyboardInterrupt):
            prepare(config(tmp_path / "data"), lambda text: (tell(text), progress(text)))

    silence, _ = longest_silence(work)
    assert silence < SECONDS
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("text", ["Connecting", "Downloading", "Checking", "Unpacking", "Reading", "Saving"])
def test_at_each_stage_of_cifar10(server: Server, text: str, tmp_path: Path):  # noqa: F811
    stopped_at(text, config(tmp_path / "data"))
    has_archive = text not in ("Connecting", "Downloading")
    assert os.listdir(tmp_path / "data") == [cifar10.ARCHIVE] * has_archive
    prepare(config(tmp_path / "data"), lambda _text: None)
    assert server.requests == (1 if has_archive else 2)


def test_an_archive_of_the_size_of_the_real_one_is_never_silent(server: Server, monkeypatch, tmp_path: Path):  # noqa: F811
    """170 MB that cannot be packed any further."""
    buffer = io.BytesIO()
    content = {name: random.Random(0).randbytes(28_000_000) for name in cifar10.TRAIN}
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as made:
        for name, data in content.items():
            info = tarfile.TarInfo(f"{cifar10.FOLDER}/{name}")
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    (tmp_path / cifar10.ARCHIVE).write_bytes(buffer.getvalue())
    with (tmp_path / cifar10.ARCHIVE).open("rb") as file:
        monkeypatch.setattr(cifar10, "ARCHIVE_MD5", cifar10._md5(file, lambda: None))

    def work(progress: store.Progress) -> None:
        with pytest.raises(store.DataError, match="data_batch_1 is damaged"):
            prepare(config(tmp_path), progress)

    silence, told = longest_silence(work)
    assert told == {"Checking CIFAR-10", "Unpacking CIFAR-10"}
    assert silence < SECONDS
