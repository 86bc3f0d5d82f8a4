"""Damage a checkpoint in a hundred ways; resume, predict, evaluate and export must refuse each in one sentence.

    python tests/programs/damaged_checkpoints.py DIR

Prints a line for each that is not refused as it should be, and at the end how many of the hundred were.
"""

import io
import os
import pickle
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from trainer import checkpoint
from trainer.checkpoint import CheckpointError, hash_path
from trainer.config import TrainConfig
from trainer.datasets.prepare import Prepared
from trainer.loop import train
from trainer.models import build_model
from trainer.parallel import Worker
from trainer.predict import evaluate, load_predictor
from trainer.ranks import RankRecord
from trainer.runs import Run
from trainer.session import Session, begin
from trainer.weights import write_weights

SMALL = {"model": "resnet9", "momentum": 0.0, "nesterov": False}  # 26 MB, the smallest that there is
CONFIG = TrainConfig(dataset="images", data_dir="none", epochs=1, batch_size=8, augment="none", **SMALL)
MARKER = Path("payload-ran")
SECONDS = 1.0

Damage = Callable[[Path], None]


class Payload:
    """Unpickling this makes a folder."""

    def __reduce__(self):
        return os.mkdir, (str(MARKER),)


def start(run: Run) -> Session:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 32, 32, 3), np.uint8)
    labels = np.arange(24) % 2
    data = Prepared(("cat", "dog"), pixels, labels, pixels, labels)
    return begin(CONFIG, Worker(0, 1, torch.device("cpu")), run, data, RankRecord(run, 0))


def flipped(place: int) -> Damage:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)

    return damage


def in_the_hash(damage: Damage) -> Damage:
    return lambda path: damage(hash_path(path))


def cut(size: int) -> Damage:
    return lambda path: os.truncate(path, size)


def signed(content: bytes) -> Damage:
    """Other bytes, with the right hash beside them."""

    def damage(path: Path) -> None:
        path.write_bytes(content)
        checkpoint._write_hashes(path, [checkpoint._sha256(path)])

    return damage


def replaced(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def torch_file(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def repacked(whole: bytes, pickled: bytes | None = None, method: int = zipfile.ZIP_STORED, more: int = 0) -> bytes:
    """A torch file with another pickle, or with a part of `more` zeros."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(buffer, "w", method) as new:
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(entry.filename, pickled if pickled and entry.filename.endswith("data.pkl") else data)
        if more:
            new.writestr("archive/data/zeros", bytes(more))
    return buffer.getvalue()


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, "PNG")
    return buffer.getvalue()


def zipped(**content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def crafted(whole: bytes, state: dict[str, Any]) -> Iterator[tuple[str, Damage]]:
    """Files that begin as they should and have their hash."""
    huge = torch.zeros(1).expand(10**12)
    weight = next(iter(state["model"]))
    deep = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    enormous = b"\x80\x02c__builtin__\nbytearray\n\x8a\x06" + (10**13).to_bytes(6, "little") + b"\x85R."
    other_models = {"model": build_model("tutorial", 2).state_dict()}
    for name, change in {
        "of another model": other_models,
        "no weights": {"model": {}},
        "weights that are none": {"model": {weight: "0.5"}},
        "a weight of 10^12 numbers": {"model": {**state["model"], weight: huge}},
        "10^12 numbers beside it": {"best": {"accuracy": huge}},
        "a weight without numbers": {"model": {**state["model"], weight: torch.zeros(1, device="meta")}},
        "a sparse weight": {"model": {**state["model"], weight: torch.eye(3).to_sparse()}},
        "a step that is a word": {"step": "one"},
        "a negative step": {"step": -1},
        "classes that are a number": {"classes": 2},
        "classes that are none": {"classes": [1, None]},
        "settings that are a list": {"config": []},
        "a payload beside it": {"best": Payload()},
    }.items():
        yield name, signed(torch_file({**state, **change}))
    yield "a part missing", signed(torch_file({k: v for k, v in state.items() if k != "normalise"}))
    yield "a whole network", signed(torch_file(torch.nn.Linear(1, 1)))
    yield "a list", signed(torch_file([1]))
    yield "a payload", signed(torch_file(Payload()))
    yield "nested 100,000 deep", signed(repacked(whole, deep))
    yield "10^13 bytes wanted", signed(repacked(whole, enormous))
    yield "no pickle", signed(repacked(whole, b"no pickle"))
    yield "packed zeros", signed(repacked(whole, method=zipfile.ZIP_DEFLATED, more=50_000_000))


def strangers() -> Iterator[tuple[str, Damage]]:
    for name, content in {
        "text": b"epoch,loss\n1,0.5\n" * 100,
        "a picture": png(),
        "an archive": zipped(readme=b"hello"),
        "an empty archive": zipped(),
        "noise": np.random.default_rng(0).bytes(5000),
        "nothing at all": b"",
        "a payload as it is": pickle.dumps(Payload()),
        "half a pickle": pickle.dumps(list(range(1000)))[:500],
    }.items():
        yield name, signed(content)
    yield "a folder", replaced(Path.mkdir)
    yield "a link to itself", replaced(lambda path: path.symlink_to(path))
    yield "a link to nowhere", replaced(lambda path: path.symlink_to("nowhere"))
    yield "a pipe", replaced(os.mkfifo)
    yield "an endless device", replaced(lambda path: path.symlink_to("/dev/zero"))
    for name, make in {
        "no hash": lambda path: None,
        "an empty hash": Path.touch,
        "the hash of another file": lambda path: path.write_text("0" * 64 + "  last.pt\n"),
        "a folder for a hash": Path.mkdir,
        "a pipe for a hash": os.mkfifo,
        "an endless hash": lambda path: path.symlink_to("/dev/zero"),
    }.items():
        yield name, in_the_hash(replaced(make))


def damages(whole: bytes, state: dict[str, Any]) -> dict[str, Damage]:
    """A hundred."""
    found = {**dict(strangers()), **dict(crafted(whole, state))}
    size = len(whole)
    for keep in (1, 3, 4, 30, 100, 1000, size // 4, size // 2, size * 3 // 4, size - 1000, size - 22, size - 1):
        found[f"cut to {keep} bytes"] = cut(keep)
    for place in (0, 7, 31, 63):
        found[f"hash flipped at {place}"] = in_the_hash(flipped(place))
    left = 100 - len(found)
    for index in range(left):
        place = index * (size - 1) // (left - 1)
        found[f"flipped at {place}"] = flipped(place)
    return found


def uses(run: Run, target: Path) -> dict[str, Callable[[], object]]:
    return {
        "resume": lambda: start(run),
        "predict": lambda: load_predictor(run, "last"),
        "evaluate": lambda: evaluate(load_predictor(run, "last"), CONFIG),
        "export": lambda: write_weights(load_predictor(run, "last"), target),
    }


def complaints(use: Callable[[], object]) -> str:
    """What is wrong with how a use was refused; "" if nothing is."""
    begun = time.monotonic()
    try:
        use()
    except CheckpointError as error:
        text, seconds = str(error), time.monotonic() - begun
        if "last.pt" not in text or "\n" in text or len(text) > 600:
            return f"said: {text}"
        return f"took {seconds:.1f} s" if seconds > SECONDS else ""
    except Exception as error:
        return f"raised {error!r}"
    return "accepted it"


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    os.chdir(folder)
    whole_run = Run.create(folder / "whole", CONFIG)
    train(start(whole_run))
    last = whole_run.checkpoint_path("last")
    whole, state = last.read_bytes(), checkpoint.load(last)
    control = [complaints(use).split("(")[0] for use in uses(whole_run, folder / "model").values()]
    assert control == ["accepted it", "accepted it", "raised DataError", "accepted it"], control  # there is no data set
    good = 0
    kinds = damages(whole, state)
    for name, damage in kinds.items():
        run = Run.create(folder / "runs", CONFIG)
        for file in (last, hash_path(last)):
            shutil.copy(file, run.path)
        damage(run.checkpoint_path("last"))
        found = {use: complaints(act) for use, act in uses(run, folder / "model").items()}
        if MARKER.exists():
            MARKER.rmdir()
            found["all"] = "its code ran"
        for use, words in found.items():
            if words:
                print(f"{name}: {use} {words}", flush=True)
        good += not any(found.values())
        shutil.rmtree(run.path)
    print(f"{good} of {len(kinds)} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
