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
from pathlib import Path
from typing import Any

from trainer.log import STDERR, say

VERSION = 1
Event = dict[str, Any]
NUMBERS = ("time", "step", "epoch", "loss", "accuracy", "lr", "images_per_second", "grad_norm", "count")


def _finite(fields: Event) -> Event:
    """Replace NaN and infinities, which JSON lacks, by null and say so in `nonfinite`."""
    bad = [key for key, value in fields.items() if isinstance(value, float) and not math.isfinite(value)]
    return {**fields, **dict.fromkeys(bad), "nonfinite": True} if bad else fields


class EventWriter:
    """Appends events. A failing disk is reported once on stderr and never stops the training."""

    def __init__(self, path: Path):
        self.path = path
        self._fd: int | None = None
        self._complained = False

    def write(self, kind: str, **fields: Any) -> None:
        event = {"kind": kind, "time": round(time.time(), 3), **_finite(fields)}
        line = json.dumps(event, allow_nan=False, separators=(",", ":")) + "\n"
        try:
            self._append(line.encode())
            self._complained = False
        except OSError as error:
            if not self._complained:
                say(f"warning: cannot write {self.path}: {error}", STDERR)
            self._complained = True

    def _append(self, data: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":  # a killed writer or a full disk tore the last line
            data = b"\n" + data
        if os.write(self._fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class EventTail:
    """Reads what was appended since the last call. `generation` rises when the file was cut or replaced."""

    CHUNK = 1 << 20

    def __init__(self, path: Path):
        self.path = path
        self.offset = 0
        self.generation = 0

    def read(self) -> list[tuple[int, Event]]:
        """New whole events as (byte position, event). Bad lines are skipped, a torn last line is left for later."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset = 0
                    self.generation += 1
                return list(self._events(file))
        except OSError:
            return []

    def _events(self, file):
        file.seek(self.offset)
        rest = b""
        while chunk := file.read(self.CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                position = self.offset
                self.offset += len(line) + 1
                event = _parse(line)
                if event is not None:
                    yield position, event


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return None
    return event if all(isinstance(event.get(key), int | float | None) for key in NUMBERS) else None


def read_events(path: Path) -> list[Event]:
    """All events of a file; [] if there is none."""
    return [event for _, event in EventTail(path).read()]
