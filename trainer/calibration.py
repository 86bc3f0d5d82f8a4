"""What a calibration has measured, the lines through it, and where it is kept. Imports no torch."""

import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer.config import ConfigError
from trainer.datasets.store import cache_root
from trainer.files import open_regular, write_atomic
from trainer.runs import RunError

MOST_DEVICES = 65_536
MOST_BYTES = 2**20  # of a file with a calibration
Positive = Annotated[float, Field(gt=0, lt=1e9)]
Count = Annotated[int, Field(ge=1, le=MOST_DEVICES)]
Point = tuple[float, float]  # pictures or bytes, seconds


class CalibrationError(RuntimeError):
    """A calibration that could not be finished; one sentence."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Compute(Frozen):
    """A training step without the exchange of gradients, while `ranks` ranks make the same step side by side."""

    ranks: Count
    batch: Annotated[int, Field(ge=1)]  # pictures of each rank
    seconds: Positive  # median
    spread: Annotated[float, Field(ge=0, le=10)] = 0.0  # of one step around it: standard deviation over the median


class Exchange(Frozen):
    """Gradients averaged over `ranks` ranks: scaled into a bucket, then all-reduced."""

    ranks: Annotated[int, Field(ge=2, le=MOST_DEVICES)]
    size: Annotated[int, Field(ge=1)]  # bytes
    seconds: Positive  # median


class Calibration(Frozen):
    """What was measured on one machine for one network."""

    v: Literal[1] = 1
    made: float = 0.0  # Unix seconds
    took: float = 0.0  # seconds
    model: str
    optimizer: str = "sgd"
    precision: str = "fp32"
    device: str  # name
    is_cpu: bool  # its ranks share one processor; else each has a device of its own
    cores: Annotated[int, Field(ge=1)] = 1
    torch: str = ""  # version
    others: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of the machine's cores that other programs took meanwhile
    gradient_bytes: Annotated[int, Field(ge=1)]
    compute: Annotated[list[Compute], Field(min_length=1)]
    exchange: list[Exchange] = []

    @property
    def counts(self) -> set[int]:
        """The numbers of ranks that were calibrated."""
        return {point.ranks for point in self.compute}

    @property
    def spread(self) -> float:
        """That of the steps of one rank at the largest batch that was measured."""
        return min(self.compute, key=lambda point: (point.ranks, -point.batch)).spread

    def compute_seconds(self, ranks: int, batch: float) -> float:
        """A step of `batch` pictures a rank without the exchange, while `ranks` ranks of one machine are at work.

        Where that number of ranks was not calibrated, from the nearest that was: ranks that share the cores of a CPU
        take longer in the same ratio, ranks with devices of their own do not.
        """
        nearest = _nearest(ranks, self.counts)
        seconds = at([(point.batch, point.seconds) for point in self.compute if point.ranks == nearest], batch)
        return seconds * ranks / nearest if self.is_cpu else seconds

    def exchange_line(self, ranks: int) -> "Line":
        """Latency and seconds a byte of the number of ranks that was calibrated and is nearest."""
        return fit(self._exchanges(ranks))

    def exchange_seconds(self, ranks: int, size: float | None = None) -> float:
        """An exchange of `size` bytes (None: the whole gradient) over `ranks` ranks of one machine.

        From the nearest number that was calibrated as a ring goes: 2 (n - 1) messages, and 2 (n - 1) / n of the bytes
        over each link; where the ranks share one memory the bytes of all of them add up. Raises ConfigError if
        no exchange was calibrated.
        """
        if ranks == 1:
            return 0.0
        points = self._exchanges(ranks)
        seconds = at(points, self.gradient_bytes if size is None else size)
        nearest = _nearest(ranks, {point.ranks for point in self.exchange})
        hops = (ranks - 1) / (nearest - 1)
        latency = min(fit(points).fixed, seconds)
        return latency * hops + (seconds - latency) * (hops if self.is_cpu else hops * nearest / ranks)

    def _exchanges(self, ranks: int) -> list[Point]:
        if not self.exchange:
            raise ConfigError({"modes": f"ddp:{ranks} cannot be forecast: no exchange between ranks was calibrated"})
        nearest = _nearest(ranks, {point.ranks for point in self.exchange})
        return [(point.size, point.seconds) for point in self.exchange if point.ranks == nearest]


class Line(Frozen):
    """fixed + slope * x, in seconds."""

    fixed: float
    slope: float

    def at(self, x: float) -> float:
        return self.fixed + self.slope * x


def fit(points: Sequence[Point]) -> Line:
    """The line of least relative squares through the points; neither part is negative.

    One point gives a line through zero.
    """
    assert points
    weighted = [(1 / y**2, x, y) for x, y in points]
    total = sum(w for w, _, _ in weighted)
    mean_x = sum(w * x for w, x, _ in weighted) / total
    mean_y = sum(w * y for w, _, y in weighted) / total
    spread = sum(w * (x - mean_x) ** 2 for w, x, _ in weighted)
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in weighted) / spread if spread > 0 else 0.0
    fixed = mean_y - slope * mean_x
    if spread <= 0 or fixed < 0:
        return Line(fixed=0.0, slope=sum(w * x * y for w, x, y in weighted) / sum(w * x * x for w, x, _ in weighted))
    return Line(fixed=fixed, slope=slope) if slope >= 0 else Line(fixed=mean_y, slope=0.0)


def at(points: Sequence[Point], x: float) -> float:
    """Seconds at `x`: straight between the two points around it, on the line through all of them outside."""
    known = sorted(points)
    for (x0, y0), (x1, y1) in pairwise(known):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return known[0][1] if len(known) == 1 and known[0][0] == x else fit(known).at(x)


def _nearest(wanted: int, known: set[int]) -> int:
    return min(known, key=lambda count: (abs(math.log(count / wanted)), -count))


# Kept beside the prepared data, one for each network, optimizer, precision, device and version: the newest.


def keep(calibration: Calibration) -> Path:
    """Write it where `find` finds it. Raises RunError."""
    path = _kept(calibration.model, calibration.optimizer, calibration.precision, calibration.device, calibration.cores)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, calibration.model_dump_json(indent=1))
    except OSError as error:
        raise RunError(f"the calibration cannot be kept in {path}: {error.strerror or error}") from error
    return path


def find(model: str, optimizer: str, precision: str, device: str, cores: int) -> Calibration | None:
    """The one that was kept for these, by this version of torch."""
    with suppress(RunError):
        return read(_kept(model, optimizer, precision, device, cores))
    return None


def read(path: Path) -> Calibration:
    """Raises RunError if it holds none."""
    try:
        with open_regular(path) as file:
            return Calibration.model_validate_json(file.read(MOST_BYTES))
    except OSError as error:
        raise RunError(f"calibration: {path} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "all of it"
        raise RunError(f"calibration: {path} holds none: {where}: {error.errors()[0]['msg']}") from None


def _kept(model: str, optimizer: str, precision: str, device: str, cores: int) -> Path:
    key = hashlib.sha256(f"{optimizer} {device} {cores} {version('torch')}".encode()).hexdigest()[:12]
    return cache_root() / "calibrations" / f"{model}-{precision}-{key}.json"
