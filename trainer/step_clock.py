"""Notes when a rank was how far within its steps, for `anatomy`, and how long gradients travelled behind backward.

On the CPU each step is noted, by the clock. On a GPU the host runs ahead of the device, so there one step in `SAMPLED`
is noted, by events that the device itself stamps, and read at the next exchange, where the host waits for the device
anyway: nothing is synchronised on the clock's behalf.
"""

import os
import struct
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.anatomy import EXTRAS, ROW_BYTES, ROWS, Moment

SAMPLED = 10  # on GPUs
_ROW = struct.Struct(f"<{1 + len(Moment) + len(EXTRAS)}d")
assert _ROW.size == ROW_BYTES

Stamp = Any  # seconds on the CPU, a torch.cuda.Event on a GPU


class NoClock:
    """Notes nothing."""

    is_noting = False

    def begin(self) -> None:
        """An epoch begins. Its first step is not noted: the ranks come to it one by one, from saving and evaluating."""

    def at(self, moment: Moment) -> None:
        """The step is so far."""

    def end(self, step: int) -> None:
        """The step with this number is over, and the next begins."""


class StepClock(NoClock):
    """Writes the moments of each noted step to a ring in `path`. A full disk costs the rows, never the training."""

    def __init__(self, path: Path, device: torch.device):
        self._device = device
        self._file: BinaryIO | None = None
        with suppress(OSError):
            path.unlink(missing_ok=True)
            self._file = path.open("xb", buffering=0)
            weakref.finalize(self, self._file.close)
        self._is_cpu = device.type == "cpu"
        self._count = 0  # steps begun in this epoch
        self._written = 0
        self._unread: list[tuple[int, _Step]] = []  # of a GPU, until it has come so far
        self._step = _Step()

    @property
    def is_noting(self) -> bool:  # type: ignore[override]
        """Whether the step under way is noted."""
        return self._count > 1 if self._is_cpu else self._count % SAMPLED == 2

    def stamp(self) -> Stamp:
        if self._is_cpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        self._count = 0
        self._next()

    def _next(self) -> None:
        self._count += 1
        self._step = _Step()
        self.at(Moment.BEGIN)

    def at(self, moment: Moment) -> None:
        if self.is_noting:
            self._step.moments[moment] = self.stamp()
        if moment == Moment.MEET:
            self._read()

    def bucket_leaves(self, is_last: bool) -> None:
        """The gradients of a bucket are computed and go to the other ranks."""
        if self.is_noting:
            now = self.stamp()
            self._step.leaving.append(now)
            if is_last:
                self._step.moments[Moment.READY] = now

    def bucket_arrives(self) -> None:
        """... and are averaged."""
        if self.is_noting:
            self._step.arriving.append(self.stamp())

    def spend(self, extra: str, begun: Stamp) -> None:
        """Something of `EXTRAS` took from `begun` until now."""
        if self.is_noting:
            self._step.spent.append((extra, begun, self.stamp()))

    def end(self, step: int) -> None:
        if self.is_noting:
            self.at(Moment.END)
            if self._is_cpu:
                self._write(step, self._step.row(float))
            else:
                self._unread.append((step, self._step))
        self._next()

    def _read(self) -> None:
        """Right after the host has waited for the device: the stamps of the steps before this one are all known."""
        if not self._unread:
            return
        anchor = self.stamp()
        anchor.synchronize()
        now = time.monotonic()
        for step, noted in self._unread:
            with suppress(RuntimeError):  # an event that a side stream has not come to
                self._write(step, noted.row(lambda event: now - event.elapsed_time(anchor) / 1000))
        self._unread.clear()

    def _write(self, step: int, row: list[float]) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.pwrite(self._file.fileno(), _ROW.pack(step, *row), self._written % ROWS * ROW_BYTES)
                self._written += 1


class _Step:
    """The stamps of one step."""

    __slots__ = ("arriving", "leaving", "moments", "spent")

    def __init__(self) -> None:
        self.moments: list[Stamp | None] = [None] * len(Moment)
        self.leaving: list[Stamp] = []
        self.arriving: list[Stamp] = []
        self.spent: list[tuple[str, Stamp, Stamp]] = []

    def row(self, seconds: Any) -> list[float]:
        """The columns after the step's number. `seconds` turns a stamp into the time of the monotonic clock.

        A moment that the step did not have (an exchange in a run of one process) came with the one before it, the end
        of backward with the last gradient.
        """
        if self.moments[Moment.READY] is None:
            self.moments[Moment.READY] = self.moments[Moment.BACKWARD]
        moments: list[float] = []
        for stamp in self.moments:
            moments.append(moments[-1] if stamp is None else seconds(stamp))
        extras = dict.fromkeys(EXTRAS, 0.0)
        extras["hidden"] = _overlap(
            [*map(seconds, self.leaving)], [*map(seconds, self.arriving)], moments[Moment.READY]
        )
        for name, begun, done in self.spent:
            extras[name] += seconds(done) - seconds(begun)
        return [*moments, *extras.values()]


def _overlap(leaving: list[float], arriving: list[float], ready: float) -> float:
    """Seconds before `ready` in which at least one bucket was under way."""
    total, until = 0.0, 0.0
    for begun, done in zip(leaving, sorted(arriving), strict=False):
        total += max(0.0, min(done, ready) - max(begun, until))
        until = max(until, done)
    return total


def average_gradients(clock: StepClock, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's own average of a bucket (its communication hook), with the clock beside it."""
    buffer = bucket.buffer().mul_(1 / dist.get_world_size())
    clock.bucket_leaves(bucket.is_last())
    work = dist.all_reduce(buffer, async_op=True)
    assert work is not None

    def arrived(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        clock.bucket_arrives()
        return future.value()[0]

    return work.get_future().then(arrived)


class TimedDataParallel(nn.DataParallel):
    """nn.DataParallel that tells how long it hands out the batch and the weights, and collects the answers."""

    def __init__(self, module: nn.Module, device_ids: list[int], clock: StepClock):
        super().__init__(module, device_ids=device_ids)
        self.clock = clock

    def scatter(self, *args: Any) -> Any:
        return self._timed("scatter", super().scatter, *args)

    def replicate(self, *args: Any) -> Any:
        return self._timed("replicate", super().replicate, *args)

    def gather(self, *args: Any) -> Any:
        return self._timed("gather", super().gather, *args)

    def _timed(self, extra: str, work: Any, *args: Any) -> Any:
        if not self.clock.is_noting:
            return work(*args)
        begun = self.clock.stamp()
        result = work(*args)
        self.clock.spend(extra, begun)
        return result
