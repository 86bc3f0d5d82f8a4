"""`events.jsonl`: one JSON object a line, appended by one writer, read from a byte offset. Imports no torch.

Kinds: `progress` {text}, `start` {v, run, step, world_size, devices, backend, precision, threads, parameters,
total_steps, steps_per_epoch, classes, config}, `step` {step, epoch, loss, accuracy, lr, images_per_second,
grad_norm}, `eval` {step, epoch, loss, accuracy, count}, `checkpoint` {step, path, accuracy}, `warning` {text},
`end` {status, error, rank, step}. Every event has `kind` and `time` (Unix seconds). A run that is resumed appends
another `start`, whose `step` tells where it goes on: earlier `step` and `eval` events beyond it are superseded.
"""

import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from trainer.files import open_regular, open_to_append
from trainer.log import STDERR, say

VERSION = 1
MAX_LINE = 4 << 20  # bytes; our longest line, the `start` of ten thousand classes, has a quarter of that
Event = dict[str, Any]

REMOVAL = 0.1  # seconds for whoever removes the whole directory, which a file made anew would hinder
LARGEST = 2**53  # beyond, a float and a browser no longer count


def _is_number(value: object) -> bool:
    return type(value) in (float, int) and abs(value) <= LARGEST  # type: ignore[arg-type]  # NaN fails as well


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) <= LARGEST


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_texts(value: object) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


# What a reader may take for granted about a key that is there and not null; a line that breaks it is a bad line.
TYPES: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("time", "epoch", "loss", "accuracy", "lr", "images_per_second", "grad_norm"), _is_number),
    **dict.fromkeys(("v", "step", "count", "rank", "world_size", "threads"), _is_whole),
    **dict.fromkeys(("parameters", "total_steps", "steps_per_epoch"), _is_whole),
    **dict.fromkeys(("kind", "text", "status", "error", "path", "run", "backend", "precision"), _is_text),
    **dict.fromkeys(("devices", "classes"), _is_texts),
    "config": lambda value: type(value) is dict,
}


# Null means something here; elsewhere a key that is null counts as one that is not there.
NULLABLE = {"loss", "accuracy", "lr", "images_per_second", "grad_norm", "error", "rank", "cause"}


def _finite(fields: Event) -> Event:
    """Replace NaN and infinities, which JSON lacks, by null and say so in `nonfinite`."""
    bad = [key for key, value in fields.items() if isinstance(value, float) and not math.isfinite(value)]
    return {**fields, **dict.fromkeys(bad), "nonfinite": True} if bad else fields


class LineWriter:
    """Appends JSON lines. A failing disk is told once on stderr, until it works again, and never raises."""

    def __init__(self, path: Path):
        self.path = path
        self.failure: OSError | None = None  # of the newest line
        self._fd: int | None = None

    def append(self, value: dict[str, Any]) -> bool:
        """Whether the line was written; one that was not, or in part, spoils none of the others."""
        line = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False) + "\n"
        before = self.failure
        try:
            self._append(line.encode(errors="replace"))  # a file's name may hold bytes that are no text
            self.failure = None
        except OSError as error:
            self.failure = error
            if before is None:
                say(f"warning: cannot write {self.path}: {error}", STDERR)
        return self.failure is None

    def _append(self, data: bytes) -> None:
        if self._fd is None:
            self._fd = open_to_append(self.path)
        elif not self._is_in_place():  # an editor, a sync tool or rm put another file there, or none
            time.sleep(REMOVAL)
            with suppress(OSError):  # the whole directory was moved: the file that moved with it is still right
                descriptor = open_to_append(self.path)
                os.close(self._fd)
                self._fd = descriptor
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":  # a killed writer or a full disk tore the last line
            data = b"\n" + data
        if os.write(self._fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_in_place(self) -> bool:
        assert self._fd is not None
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except OSError:
            return False

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class EventWriter(LineWriter):
    """Appends events."""

    def write(self, kind: str, **fields: Any) -> bool:
        """Whether the event is in the file; never raises for a failing disk."""
        return self.append({"kind": kind, "time": round(time.time(), 3), **_finite(fields)})


class EventTail:
    """Reads what was appended since the last call. `generation` rises when the file was cut or replaced."""

    def __init__(self, path: Path):
        self.path = path
        self.offset = 0
        self.size = 0  # of the file, in bytes, when it was last looked at
        self.generation = 0
        self._within_long_line = False

    def read(self, limit: int | None = None) -> list[tuple[int, Event]]:
        """New whole events as (byte position, event), at most `limit`; the next call goes on behind them.

        Bad lines and those beyond MAX_LINE are skipped, a torn last line is left for later.
        """
        return list(islice(self.stream(), limit))

    def stream(self) -> Iterator[tuple[int, Event]]:
        """The same one by one, so that a reader which folds them never holds more than one line.

        `generation` is up to date when this returns; what is not taken from it comes with the next call.
        """
        try:
            file = open_regular(self.path)
        except OSError:
            return iter(())
        self.size = os.fstat(file.fileno()).st_size
        if self.size < self.offset:
            self.offset, self._within_long_line = 0, False
            self.generation += 1
        return self._events(file)

    def _events(self, file: BinaryIO) -> Iterator[tuple[int, Event]]:
        try:
            with file:
                file.seek(self.offset)
                while line := file.readline(MAX_LINE):
                    is_whole = line.endswith(b"\n")
                    if not is_whole and len(line) < MAX_LINE:
                        return
                    position, is_first = self.offset, not self._within_long_line
                    self.offset += len(line)
                    self._within_long_line = not is_whole
                    event = _parse(line) if is_whole and is_first else None
                    if event is not None:
                        yield position, event
        except OSError:  # the disk fails: what could be read was given, the rest comes when it works again
            return


def _parse(line: bytes) -> Event | None:
    """The event of a line; None if it is none, whatever else it may be."""
    try:
        event = json.loads(line)
        if b"\\u" in line:  # half a pair of surrogates is no text: it cannot be sent or printed
            json.dumps(event, ensure_ascii=False).encode()
    except (ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(event, dict) or event.get("kind") is None:
        return None
    for key, value in event.items():
        check = TYPES.get(key)
        if check is not None and value is not None and not check(value):
            return None
    return {key: value for key, value in event.items() if value is not None or key in NULLABLE}


def read_events(path: Path) -> list[Event]:
    """All events of a file; [] if there is none."""
    return [event for _, event in EventTail(path).stream()]
