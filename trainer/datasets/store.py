"""Prepared data sets on disk: built once, whole or not at all, whoever asks first. Imports no torch.

    <cache>/<name>/          meta.json, train_images.npy, train_labels.npy, test_images.npy, test_labels.npy
    <cache>/<name>.lock      held (flock) while one process builds; the others wait for it
    <cache>/.<name>.building what is being built; renamed at the end, removed by the next builder after a crash

<cache> is $PARALLEL_TRAINER_CACHE or ~/.cache/parallel-trainer.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Progress = Callable[[str], None]
PARTS = ("train_images", "train_labels", "test_images", "test_labels")
UNUSED_DAYS = 1.0  # how long an outdated copy is kept for runs that may still read it


class DataError(ValueError):
    """Data that cannot be used; one sentence naming the path, the rule and what to do."""


@dataclass(frozen=True)
class Sizes:
    """What is known about a data set without reading its pictures."""

    num_train: int
    num_test: int
    num_classes: int


@dataclass(frozen=True)
class Arrays:
    """A data set in memory: images (N, 32, 32, 3) uint8, labels (N,) int64, sentences for the user."""

    classes: tuple[str, ...]
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared(Arrays):
    """A data set in the cache; its arrays are read-only maps of the files in `path`.

    `mean` and `std` are those of the training pictures, one for each of red, green, blue, on a scale of 0 to 1.
    """

    path: Path = Path()
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @property
    def sizes(self) -> Sizes:
        return Sizes(len(self.train_labels), len(self.test_labels), len(self.classes))


@dataclass(frozen=True)
class Source:
    """Where a data set comes from. `name` changes when its content does; `build(scratch folder, progress)` reads it."""

    name: str
    build: Callable[[Path, Progress], Arrays]


def cache_root() -> Path:
    chosen = os.environ.get("PARALLEL_TRAINER_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "parallel-trainer"


def cached(source: Source) -> Prepared | None:
    """The data set if it was prepared before."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return open_prepared(cache_root() / source.name)
    return None


def open_prepared(path: Path) -> Prepared:
    """The data set that `prepare` put into `path`. Raises DataError if it is not there or not whole."""
    try:
        meta = json.loads((path / "meta.json").read_text())
        arrays = {part: np.load(path / f"{part}.npy", mmap_mode="r", allow_pickle=False) for part in PARTS}
        return Prepared(
            classes=tuple(meta["classes"]),
            notes=tuple(meta["notes"]),
            path=path,
            mean=tuple(meta["mean"]),
            std=tuple(meta["std"]),
            **arrays,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} holds no whole prepared data set ({error}): delete it and start again") from error


def obtain(source: Source, progress: Progress) -> Prepared:
    """The data set from the cache, built now if need be. Raises DataError."""
    found = cached(source)
    if found is None:
        root = _writable(cache_root())
        with _locked(root / f"{source.name}.lock", progress):
            found = cached(source) or _build(root, source, progress)
    with suppress(OSError):
        os.utime(found.path / "meta.json")  # in use: not outdated
    return found


def _build(root: Path, source: Source, progress: Progress) -> Prepared:
    building, final = root / f".{source.name}.building", root / source.name
    try:
        for leftover in (building, final):  # `final` was there, but not whole
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = building / "scratch"
        scratch.mkdir(parents=True)
        arrays = source.build(scratch, progress)
        shutil.rmtree(scratch)
        _save(building, arrays)
        os.rename(building, final)
    except OSError as error:
        raise _not_writable(root, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    _forget_outdated(final)
    return open_prepared(final)


def _save(folder: Path, arrays: Arrays) -> None:
    for part in PARTS:
        np.save(folder / f"{part}.npy", getattr(arrays, part), allow_pickle=False)
    mean, std = colour_statistics(arrays.train_images)
    meta = {"classes": arrays.classes, "notes": arrays.notes, "mean": mean, "std": std}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def colour_statistics(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of (N, 32, 32, 3) uint8, on a scale of 0 to 1.

    Counted by pixel value: exact, and without a copy of the pictures as floats. A std is at least 1/255.
    """
    counts = np.zeros((3, 256), np.int64)
    for start in range(0, len(images), 2048):  # bincount makes int64 of what it counts
        for channel in range(3):
            counts[channel] += np.bincount(images[start : start + 2048, ..., channel].ravel(), minlength=256)
    weights, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = weights @ values
    std = np.sqrt((weights * (values - mean[:, None]) ** 2).sum(1))
    return [round(float(m), 6) for m in mean], [round(max(1 / 255, float(s)), 6) for s in std]


def _forget_outdated(final: Path) -> None:
    """Remove earlier versions of the same source (same name up to the last dash) that nobody has used for a day."""
    family = final.name.rpartition("-")[0]
    for other in final.parent.glob(f"{family}-*/meta.json"):
        with suppress(OSError):
            if other.parent != final and time.time() - other.stat().st_mtime > UNUSED_DAYS * 86_400:
                shutil.rmtree(other.parent, ignore_errors=True)


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """One process at a time; the kernel frees the lock of a process that dies."""
    try:
        file = path.open("a")
    except OSError as error:
        raise _not_writable(path.parent, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("Waiting for another process that prepares the same pictures")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _writable(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(root, error) from error
    return root


def _not_writable(root: Path, error: OSError) -> DataError:
    reason = error.strerror or str(error)
    return DataError(
        f"the prepared pictures cannot be written to {root} ({reason}): "
        "set PARALLEL_TRAINER_CACHE to a folder with room for them"
    )
