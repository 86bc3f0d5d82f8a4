"""Thousands of `step` events at once, as columns: the quick way through a long file. What is odd takes the slow one."""

from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.event_reader import LARGEST, StepLines

FEW = 8  # lines below which the slow way is as quick


class StepColumns(NamedTuple):
    """One row a `step` event: step int64, the others float64, each (n,); NaN for null. Steps do not fall."""

    step: NDArray[Any]
    time: NDArray[Any]
    epoch: NDArray[Any]
    loss: NDArray[Any]
    lr: NDArray[Any]
    images_per_second: NDArray[Any]

    def until(self, step: float) -> "StepColumns":
        """Those up to a step."""
        count = int(np.searchsorted(self.step, step, side="right"))
        return StepColumns(*(column[:count] for column in self))


def step_columns(lines: StepLines) -> StepColumns | None:
    """All lines as columns; None if they are few or one of them is not what the trainer writes."""
    steps = lines.steps() if len(lines) >= FEW else None
    if steps is None:
        return None
    try:
        number = np.array([step.step for step in steps], np.int64)
    except OverflowError:
        return None
    values = [np.array([*map(attrgetter(name), steps)], np.float64) for name in StepColumns._fields[1:]]
    in_order = number[0] >= 0 and bool((np.diff(number) >= 0).all())
    in_range = all(not (np.abs(column) > LARGEST).any() for column in (number, *values))
    return StepColumns(number, *values) if in_order and in_range else None
