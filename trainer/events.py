"""`events.jsonl`: one JSON object a line, appended by one writer. Imports no torch; `event_reader` reads it.

Kinds: `progress` {text}, `start` {v, run, step, world_size, devices, backend, precision, memory_format, threads,
allocator, parameters, gradient_bytes, largest_layer, largest_layer_bytes, total_steps, steps_per_epoch, classes,
config}, `step` {step, epoch, loss, accuracy, lr, images_per_second, grad_norm}, `eval` {step, epoch, loss, accuracy,
count, checksum: that of the weights which all of several ranks hold}, `anatomy` {step, steps: how many it is the mean
of, seconds of one, ranks: [seconds of each part of a step, see `anatomy.PARTS`, and `hidden`]}, `checkpoint` {step,
path, accuracy}, `warning` {text}, `end` {status, error, rank, step}. Every event has `kind` and `time` (Unix seconds).
A run that is resumed appends another `start`, whose `step` tells where it goes on: earlier `step` and `eval` events
beyond it are superseded.
"""

import errno
import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.files import open_to_append
from trainer.log import STDERR, say

VERSION = 1
Event = dict[str, Any]

REMOVAL = 0.1  # seconds for whoever removes the whole directory, which a file made anew would hinder


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
