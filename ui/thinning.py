"""Long histories made short: rows thinned in stable bins that keep every spike, and a smoothed loss.

What arrives one by one goes through `add`; what is read from a long file, thousands at a time, through `extend`.
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 256
SMOOTHING = {"light": 0.9, "strong": 0.98}  # weight of the past in the moving average, per logged point


class Point(NamedTuple):
    """One `step` event. `loss` is None where it was not finite; `light` and `strong` are the smoothed loss."""

    step: int
    minutes: float
    epoch: float
    loss: float | None
    light: float | None
    strong: float | None
    lr: float | None


class Points(NamedTuple):
    """Many of them as columns, each (n,), steps int64, the others float64; what is None in a Point is NaN here."""

    step: NDArray[Any]
    minutes: NDArray[Any]
    epoch: NDArray[Any]
    loss: NDArray[Any]
    light: NDArray[Any]
    strong: NDArray[Any]
    lr: NDArray[Any]

    def at(self, pick: NDArray[np.int64] | slice) -> list[Point]:
        columns = [[None if value != value else value for value in column[pick].tolist()] for column in self]
        return [Point(*row) for row in zip(*columns, strict=True)]

    def last(self, count: int) -> "Points":
        return Points(*(column[-count:].copy() for column in self))


class Evaluation(NamedTuple):
    """One `eval` event; `accuracy` in percent."""

    step: int
    minutes: float
    epoch: float
    loss: float | None
    accuracy: float | None


Row = Point | Evaluation


class Thinned:
    """Rows in the order of their steps, in bins of `width` = 2^k steps, at most `limit` bins."""

    def __init__(self, limit: int, column: str):
        self.limit = limit
        self.column = column  # whose extremes are kept
        self.width = 1
        self._bins: list[tuple[int, list[Row]]] = []
        self._low, self._high = math.inf, -math.inf  # of the last bin

    def add(self, row: Row) -> None:
        value = getattr(row, self.column)
        number = row.step // self.width
        if self._bins and number <= self._bins[-1][0]:
            if value is not None and self._low <= value <= self._high:
                return
            self._bins[-1] = self._bins[-1][0], self._extremes([*self._bins[-1][1], row])
        else:
            self._bins.append((number, [row]))
            if len(self._bins) > self.limit:
                self.width, self._bins = self._merged(self.limit)
        values = [value for row in self._bins[-1][1] if (value := getattr(row, self.column)) is not None]
        self._low, self._high = (min(values), max(values)) if values else (math.inf, -math.inf)

    def extend(self, points: Points) -> None:
        """Add points whose steps do not fall: those of each bin that can count, the others are never made."""
        numbers, values = points.step // self.width, getattr(points, self.column)
        gaps = np.flatnonzero(np.isnan(values))
        kept = set(gaps[np.unique(numbers[gaps], return_index=True)[1]].tolist())
        low, high = np.where(np.isnan(values), math.inf, values), np.where(np.isnan(values), -math.inf, values)
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        for start, stop in pairwise([*starts, len(numbers)]):
            kept |= {start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())}
        for row in points.at(np.array(sorted(kept), np.int64)):
            self.add(row)

    def rows(self, limit: int) -> list[Row]:
        """What is left of the history with at most `limit` bins: a part of all rows, none of them changed."""
        return [row for _, rows in self._merged(limit)[1] for row in rows]

    def _merged(self, limit: int) -> tuple[int, list[tuple[int, list[Row]]]]:
        width, bins = self.width, self._bins
        while len(bins) > limit:
            width *= 2
            merged: list[tuple[int, list[Row]]] = []
            for number, rows in bins:
                if merged and merged[-1][0] == number // 2:
                    merged[-1] = number // 2, self._extremes(merged[-1][1] + rows)
                else:
                    merged.append((number // 2, rows))
            bins = merged
        return width, bins

    def _extremes(self, rows: list[Row]) -> list[Row]:
        """The lowest, the highest and the first that has no value, in their order."""
        values = [getattr(row, self.column) for row in rows]
        finite = [index for index, value in enumerate(values) if value is not None]
        kept = {values.index(None)} if len(finite) < len(rows) else set()
        if finite:
            kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        return [rows[index] for index in sorted(kept)]


class Smoother:
    """Exponential moving average without the pull towards its zero start. Steps over what is not finite."""

    def __init__(self, weight: float):
        self.weight = weight
        self._sum = 0.0
        self._mass = 0.0  # tends to 1; dividing by it takes the bias away

    def add(self, value: float | None) -> float | None:
        if value is not None:
            self._sum = self.weight * self._sum + (1 - self.weight) * value
            self._mass = self.weight * self._mass + (1 - self.weight)
        return self._sum / self._mass if self._mass else None

    def extend(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What `add` gives for each of many values; NaN stands for None."""
        is_finite = ~np.isnan(values)
        before = self._sum / self._mass if self._mass else math.nan
        sums = _decayed_sums(self._sum, values[is_finite], self.weight)
        masses = _decayed_sums(self._mass, np.ones(len(sums)), self.weight)
        if len(sums):
            self._sum, self._mass = float(sums[-1]), float(masses[-1])
        return np.concatenate([[before], sums / masses])[np.cumsum(is_finite)]


def _decayed_sums(start: float, values: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """The sums s = weight * s + (1 - weight) * value after each value; `BLOCK` at a time, before the powers vanish."""
    sums = np.empty(len(values))
    powers = weight ** np.arange(1, BLOCK + 1)
    for begin in range(0, len(values), BLOCK):
        part = values[begin : begin + BLOCK]
        power = powers[: len(part)]
        sums[begin : begin + BLOCK] = power * (start + np.cumsum((1 - weight) * part / power))
        start = sums[begin + len(part) - 1]
    return sums
