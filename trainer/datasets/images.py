"""Your own pictures: a folder or an archive laid out train/<class>/* and, if there is one, test/<class>/*. No torch.

Everything may lie inside one top folder. The class is the folder below train/, however deep the file is below that.

Everything with the name of a picture that is no folder counts as a picture. One that cannot be read (damaged, cut,
empty, of more than 10 MB or 16 million pixels, not permitted, a link that leads nowhere, a pipe, gone since it was
listed) is left out and named, as long as they are no more than 1 in 100; else all is refused, naming the first.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainer.datasets.decode import decode, seldom
from trainer.datasets.listing import (
    ARCHIVES,
    Entry,
    archive_entries,
    archive_reader,
    folder_entries,
    identity,
    is_archive,
)
from trainer.datasets.store import Arrays, DataError, Progress, Source

LAYOUT = "expected train/<class>/<picture> with two or more classes and, if you have one, test/<class>/<picture>"
TEST_SHARE = 0.1
SPLIT_SEED = 0  # not the run's seed: every run is tested on the same pictures
UNREADABLE_SHARE = 0.01


class _Item(NamedTuple):
    part: str
    label: str
    entry: Entry


def on_disk(data_dir: str) -> bool:
    return _location(data_dir) is not None


def source(data_dir: str, progress: Progress = lambda _text: None) -> Source:
    """Raises DataError if there is nothing at `data_dir`."""
    path = _location(data_dir)
    if path is None:
        raise DataError(f"{data_dir} is neither a folder nor a {', '.join(ARCHIVES)} file: {LAYOUT}")
    tick = seldom(lambda: progress(f"Looking into {path.name}"))
    try:
        entries = None if os.path.isfile(path) else list(folder_entries(path, tick))
        name = f"images-{identity(path, entries)}"
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read ({error.strerror}): allow reading it") from error
    return Source(name, lambda progress: _build(path, entries, progress))


def _location(data_dir: str) -> Path | None:
    """The folder or archive; for a folder without train/ that holds exactly one archive, that archive."""
    path = Path(os.path.expanduser(data_dir))
    if is_archive(path):
        return path
    if not os.path.isdir(path):
        return None
    try:
        inside = list(path.iterdir())
    except OSError:
        return path
    archives = [item for item in inside if not item.name.startswith(".") and is_archive(item)]
    has_train = os.path.isdir(path / "train") or any(os.path.isdir(item / "train") for item in inside)
    return archives[0] if len(archives) == 1 and not has_train else path


def _build(path: Path, entries: list[Entry] | None, progress: Progress) -> Arrays:
    try:
        if entries is not None:
            return _arrays(path, None, entries, progress)
        newest = f"Looking into {path.name}"

        def tell(text: str) -> None:
            nonlocal newest
            newest = text
            progress(text)

        with archive_reader(path, seldom(lambda: progress(newest))) as archive:
            return _arrays(path, archive, archive_entries(archive), tell)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): allow reading it or make it again") from error


def _arrays(path: Path, archive: Any, entries: list[Entry], progress: Progress) -> Arrays:
    items = _laid_out(path, entries)
    classes = _classes(path, items)
    images, bad = decode(archive, [item.entry for item in items], progress)
    if len(bad) > UNREADABLE_SHARE * len(items):
        first, reason = bad[0]
        raise DataError(
            f"{path}: {len(bad)} of {len(items)} pictures cannot be read, more than 1 in 100, the first is {first} "
            f"({reason.rstrip('.')}): mend or remove them"
        )
    unreadable = {name for name, _ in bad}
    kept = [item for item in items if item.entry.name not in unreadable]
    labels = np.array([classes.index(item.label) for item in kept], np.int64)
    notes = [_skipped(len(items), bad)] if bad else []
    in_test = np.array([item.part == "test" for item in kept])
    if not in_test.any():
        in_test = _split(labels)
        notes.append(
            f"There is no test part: {in_test.sum():,} pictures, one tenth of each class, were set aside for testing; "
            "the choice is the same in every run."
        )
    _check_parts(path, classes, labels, in_test)
    shown = tuple(name.encode(errors="replace").decode() for name in classes)
    return Arrays(shown, images[~in_test], labels[~in_test], images[in_test], labels[in_test], tuple(notes))


def _laid_out(path: Path, entries: list[Entry]) -> list[_Item]:
    """The entries below train/ and test/, sorted by name, so that the result does not depend on the container."""
    top = _top(entries)
    items = []
    for entry in sorted(entries, key=lambda e: e.name):
        parts = entry.name.split("/")[top:]
        if len(parts) > 2 and parts[0] in ("train", "test"):
            items.append(_Item(parts[0], parts[1], entry))
    if not any(item.part == "train" for item in items):
        raise DataError(f"{path}: {LAYOUT}; found {_found(entries)}")
    return items


def _top(entries: list[Entry]) -> int:
    """How many leading folders to leave out: 1 if everything lies inside one that is not train/ itself, else 0."""
    first = {entry.name.partition("/")[0] for entry in entries}
    return 1 if len(first) == 1 and "train" not in first else 0


def _found(entries: Iterable[Entry]) -> str:
    places = Counter("/".join(entry.name.split("/")[:-1][:3]) or "the top" for entry in entries)
    if not places:
        return "no pictures at all"
    listed = ", ".join(f"{count} in {place}" for place, count in places.most_common(3))
    return f"pictures elsewhere: {listed}" + (" and more" if len(places) > 3 else "")


def _classes(path: Path, items: list[_Item]) -> list[str]:
    train = {item.label for item in items if item.part == "train"}
    strangers = sorted({item.label for item in items if item.part == "test"} - train)
    if strangers:
        raise DataError(f"{path}: test/{strangers[0]} has no counterpart train/{strangers[0]}: add it or remove it")
    if len(train) < 2:
        raise DataError(f"{path}: there is only one class, {train.pop()}: {LAYOUT}")
    return sorted(train)


def _skipped(total: int, bad: list[tuple[str, str]]) -> str:
    names = ", ".join(name for name, _ in bad[:5]) + (" and more" if len(bad) > 5 else "")
    return f"{len(bad)} of {total:,} pictures could not be read and were left out: {names}."


def _split(labels: np.ndarray) -> np.ndarray:
    """Which pictures are for testing: a tenth of each class, at least one of every class that has two."""
    rng = np.random.Generator(np.random.PCG64(SPLIT_SEED))
    in_test = np.zeros(len(labels), bool)
    members: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(labels.tolist()):
        members[label].append(index)
    for label in sorted(members):
        own = np.array(members[label])
        count = 0 if len(own) < 2 else max(1, round(TEST_SHARE * len(own)))
        in_test[own[np.argsort(rng.random(len(own)), kind="stable")[:count]]] = True
    return in_test


def _check_parts(path: Path, classes: list[str], labels: np.ndarray, in_test: np.ndarray) -> None:
    counts = np.bincount(labels[~in_test], minlength=len(classes))
    if (counts == 0).any():
        raise DataError(f"{path}: train/{classes[int(counts.argmin())]} has no readable picture: add some or remove it")
    if not in_test.any():
        raise DataError(f"{path}: no class has two pictures, so none can be set aside for testing: add pictures")
