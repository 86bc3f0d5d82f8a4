"""Prepared data sets on disk: built once, whole or not at all, whoever asks first. Imports no torch.

    <cache>/<name>/          meta.json, train_images.npy, train_labels.npy, test_images.npy, test_labels.npy
    <cache>/<name>.lock      held (flock) while one process builds; the others wait for it
    <cache>/.<name>.building what is being built; renamed at the end, removed by the next builder after a crash

<cache> is $PARALLEL_TRAINER_CACHE or ~/.cache/parallel-trainer. meta.json holds the SHA-256 of each array, and a seal
over itself. `obtain`, which runs once before any rank starts, checks all of them: reading 180 MB takes 0.1 s, and
they are about to be read anyway. Opening checks what takes no time: the seal, the shapes, and the labels, of which a
wrong one would crash the training.
"""

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.datasets.arrays import check_part, colour_statistics, digest, open_array, read_meta, save_array, write_meta
from trainer.datasets.locks import TakenError, locked, refuse

Progress = Callable[[str], None]
OURS = re.compile(r"(cifar10|images|shapes)(-[0-9a-f]+)+")  # in a folder that may hold files of others
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
    """Where a data set comes from. `name` changes when its content does; `build(progress)` reads it."""

    name: str
    build: Callable[[Progress], Arrays]


def cache_root() -> Path:
    chosen = os.environ.get("PARALLEL_TRAINER_CACHE")
    return Path(os.path.expanduser(chosen or "~/.cache/parallel-trainer"))


def cached(source: Source) -> Prepared | None:
    """The data set if it was prepared before."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return open_prepared(cache_root() / source.name)
    return None


def open_prepared(path: Path) -> Prepared:
    """The data set that `prepare` put into `path`. Raises DataError if it is not there or not whole."""
    try:
        meta = read_meta(path)
        arrays = {part: open_array(path / f"{part}.npy") for part in PARTS}
        for part in ("train", "test"):
            check_part(path, part, meta, arrays)
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


def _is_undamaged(found: Prepared, progress: Progress) -> bool:
    """Whether the pictures are those that were written. Tells `progress` what it does."""

    def tick() -> None:
        progress("Checking the prepared pictures")

    known = read_meta(found.path)["sha256"]
    return all(digest(found.path / f"{name}.npy", tick) == known[name] for name in ("train_images", "test_images"))


def _checked(source: Source, progress: Progress) -> Prepared | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = open_prepared(cache_root() / source.name)
        return found if _is_undamaged(found, progress) else None
    return None


def obtain(source: Source, progress: Progress) -> Prepared:
    """The data set from the cache, built now if need be. Raises DataError.

    `progress` is told at least twice a second what goes on, also when that is the same; what it raises ends the work
    and leaves nothing half-made.
    """
    found = _checked(source, progress)
    if found is None:
        root = _writable(cache_root())
        waiting = "Waiting for another process that prepares the same pictures"
        try:
            with locked(root / f"{source.name}.lock", lambda: progress(waiting)):
                found = _checked(source, progress) or _build(root, source, progress)
        except OSError as error:  # of the lock; the builder has its own words
            raise _not_writable(root, error) from error
    with suppress(OSError):
        os.utime(found.path / "meta.json")  # in use: not outdated
    return found


def _build(root: Path, source: Source, progress: Progress) -> Prepared:
    building, final = root / f".{source.name}.building", root / source.name
    _remove_leftovers(root, source.name)
    try:
        for leftover in (building, final):  # `final` was there, but not whole
            shutil.rmtree(leftover, ignore_errors=True)
        arrays = source.build(progress)
        building.mkdir()
        _save(building, arrays, progress)
        os.rename(building, final)
    except OSError as error:
        raise _not_writable(root, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    _forget_outdated(final)
    return open_prepared(final)


def _save(folder: Path, arrays: Arrays, progress: Progress) -> None:
    """No fsync: what a power cut tears does not have its hash, and is built again."""

    def tick() -> None:
        progress("Saving the pictures")

    digests = {part: save_array(folder / f"{part}.npy", getattr(arrays, part), tick) for part in PARTS}
    mean, std = colour_statistics(arrays.train_images, tick)
    meta = {"classes": list(arrays.classes), "notes": list(arrays.notes), "mean": mean, "std": std, "sha256": digests}
    write_meta(folder, meta)


def _remove_leftovers(root: Path, own: str) -> None:
    """What killed builders of other data sets left, where nobody builds those now; their locks go as well."""
    names = {path.name[1:].removesuffix(".building") for path in root.glob(".*.building")}
    names |= {path.name.removesuffix(".lock") for path in root.glob("[!.]*.lock")}
    for name in filter(OURS.fullmatch, names - {own}):
        with suppress(OSError, TakenError), locked(root / f"{name}.lock", refuse):
            shutil.rmtree(root / f".{name}.building", ignore_errors=True)


def _forget_outdated(final: Path) -> None:
    """Remove earlier versions of the same source (same name up to the last dash) that nobody has used for a day."""
    family = final.name.rpartition("-")[0]
    for other in final.parent.glob(f"{family}-*/meta.json"):
        with suppress(OSError):
            is_another = other.parent != final and OURS.fullmatch(other.parent.name)
            if is_another and time.time() - other.stat().st_mtime > UNUSED_DAYS * 86_400:
                shutil.rmtree(other.parent, ignore_errors=True)


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
