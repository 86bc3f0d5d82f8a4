"""Long histories made short: rows thinned in stable bins that keep every spike, and a smoothed loss."""

import math
from typing import NamedTuple

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
