"""Inside a step: the moments that each rank notes in `ranks/<n>.steps`, and where the time goes. Imports no torch.

The file is a ring of the newest `ROWS` steps, one row of `COLUMNS` as little-endian float64 for each. Moments are
seconds of the kernel's monotonic clock, which all processes of a machine share, so that ranks can be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import reduce
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from trainer.files import open_regular
from trainer.runs import Run

ROWS = 256


class Moment(IntEnum):
    """When a rank was so far within a step. The column of a row is one more."""

    BEGIN = 0
    DATA = 1  # its pictures are there
    FORWARD = 2
    READY = 3  # its last gradient is computed
    BACKWARD = 4  # ... and averaged with those of the other ranks
    OPTIMIZER = 5
    ARRIVE = 6  # at the exchange of the loss sums, in steps that have one
    MEET = 7  # ... and is through
    END = 8


EXTRAS = (
    "hidden",
    "scatter",
    "replicate",
    "gather",
)  # seconds; the first is exchange before READY, the others are dp's
COLUMNS = ("step", *(moment.name.lower() for moment in Moment), *EXTRAS)
ROW_BYTES = 8 * len(COLUMNS)
# What a step is made of, in the order in which it happens; their sum is the time from BEGIN to END.
PARTS = ("data", "scatter", "replicate", "forward", "gather", "backward", "waiting", "exchange", "optimizer", "other")

FIRST_PERIOD = 2.0  # seconds of training between two `anatomy` events at the beginning
GROWTH = 0.01  # ... and later as a share of the time trained, so that a long run does not fill a disk
WARM_UP = 5  # steps of a process: memory is taken, kernels are chosen, DDP arranges its buckets
LEAST_WAIT = 1e-3  # seconds, and
LEAST_SHARE = 0.05  # of a step, by which the others must wait longer than a rank for it to be called the slowest


def read_rows(path: Path) -> np.ndarray:
    """(n, columns) of the steps in a file, oldest first; torn and senseless rows are left out."""
    try:
        with open_regular(path) as file:
            data = file.read(ROWS * ROW_BYTES)
    except OSError:
        data = b""
    rows = np.frombuffer(data[: len(data) // ROW_BYTES * ROW_BYTES], "<f8").reshape(-1, len(COLUMNS))
    with np.errstate(invalid="ignore"):
        moments, extras = rows[:, 1 : 1 + len(Moment)], rows[:, 1 + len(Moment) :]
        is_good = np.isfinite(rows).all(1) & (rows[:, 0] >= 1) & (moments[:, 0] > 0)
        is_good &= (np.diff(moments, axis=1) >= 0).all(1) & (extras >= 0).all(1)
    rows = rows[is_good]
    return rows[np.argsort(rows[:, 0])]


def read_ranks(run: Run, world_size: int) -> np.ndarray:
    """(ranks, n, columns) of the newest steps that all ranks have made; n is 0 if there is none."""
    return same_steps([read_rows(steps_path(run, rank)) for rank in range(max(1, world_size))])


def steps_path(run: Run, rank: int) -> Path:
    return run.ranks_path / f"{rank}.steps"


def same_steps(ranks: Sequence[np.ndarray]) -> np.ndarray:
    """(ranks, n, columns): the rows of the steps that none of them lacks."""
    steps = reduce(np.intersect1d, [np.unique(rows[:, 0]) for rows in ranks])
    return np.stack([rows[np.searchsorted(rows[:, 0], steps)] for rows in ranks])


def dissect(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Seconds of each part, (ranks, n) for rows of (ranks, n, columns), and of `hidden`, which lies within backward.

    A rank waits from its own arrival at an exchange until the last rank has arrived there; only then anything can be
    exchanged.
    """
    at = {moment: rows[:, :, 1 + moment] for moment in Moment}
    hidden, scatter, replicate, gather = (rows[:, :, 1 + len(Moment) + index] for index in range(len(EXTRAS)))
    waiting = np.zeros(rows.shape[:2])
    for arrival, departure in ((Moment.READY, Moment.BACKWARD), (Moment.ARRIVE, Moment.MEET)):
        last = at[arrival].max(axis=0)
        waiting += np.clip(np.minimum(last, at[departure]) - at[arrival], 0, None)
    exposed = at[Moment.BACKWARD] - at[Moment.READY] + at[Moment.MEET] - at[Moment.ARRIVE]
    other = at[Moment.ARRIVE] - at[Moment.OPTIMIZER] + at[Moment.END] - at[Moment.MEET]
    if len(rows) == 1:  # nobody to exchange with: reading the sums off the device is bookkeeping
        other, exposed = other + exposed, waiting
    return {
        "data": at[Moment.DATA] - at[Moment.BEGIN],
        "scatter": scatter,
        "replicate": replicate,
        "forward": np.clip(at[Moment.FORWARD] - at[Moment.DATA] - scatter - replicate - gather, 0, None),
        "gather": gather,
        "backward": at[Moment.READY] - at[Moment.FORWARD],
        "waiting": waiting,
        "exchange": exposed - waiting,
        "optimizer": at[Moment.OPTIMIZER] - at[Moment.BACKWARD],
        "other": other,
        "hidden": hidden,
    }


def means(rows: np.ndarray) -> list[dict[str, float]]:
    """For each rank the mean seconds of each part and of `hidden`, in a step."""
    parts = {name: seconds.mean(axis=1) for name, seconds in dissect(rows).items()}
    return [{name: float(seconds[rank]) for name, seconds in parts.items()} for rank in range(len(rows))]


def slowest(ranks: Sequence[dict[str, float]]) -> tuple[int, float] | None:
    """(the rank that the others wait for, how many seconds longer than it they wait in a step), if there is one."""
    if len(ranks) < 2:
        return None
    waits = [rank.get("waiting", 0.0) for rank in ranks]
    rank = min(range(len(ranks)), key=waits.__getitem__)
    longer = (sum(waits) - waits[rank]) / (len(ranks) - 1) - waits[rank]
    step = max(sum(rank.get(name, 0.0) for name in PARTS) for rank in ranks)
    return (rank, longer) if longer >= max(LEAST_WAIT, LEAST_SHARE * step) else None


@dataclass
class Reporter:
    """Rank 0's: now and then what the steps of all ranks were made of since the last time."""

    run: Run
    world_size: int
    told: float = 0.0  # the newest step that was counted
    _begun: float = field(default_factory=monotonic)
    _at: float = field(default_factory=monotonic)

    def news(self, is_last: bool = False) -> dict[str, Any] | None:
        """The fields of an `anatomy` event, if it is time for one: {step: the newest, steps: how many, seconds of one,
        ranks: [mean seconds of each part]}."""
        now = monotonic()
        if not is_last and now - self._at < max(FIRST_PERIOD, GROWTH * (now - self._begun)):
            return None
        self._at = now
        rows = read_ranks(self.run, self.world_size)
        rows = rows[:, rows[0, :, 0] > self.told]
        if not rows.shape[1]:
            return None
        self.told = float(rows[0, -1, 0])
        found = means(rows)
        return {
            "step": int(self.told),
            "steps": rows.shape[1],
            "seconds": round(max(sum(rank[name] for name in PARTS) for rank in found), 7),
            "ranks": [{name: round(value, 7) for name, value in rank.items() if value} for rank in found],
        }
