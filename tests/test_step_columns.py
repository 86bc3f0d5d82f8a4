"""The quick way through a file takes exactly what the trainer writes, and nothing else."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from trainer.event_reader import EventTail, StepLines
from trainer.events import EventWriter
from ui.step_columns import FEW, StepColumns, step_columns


def written(path: Path, losses: list[float], first: int = 1) -> StepLines:
    writer = EventWriter(path)
    for step, loss in enumerate(losses, first):
        values = {"accuracy": 0.5, "lr": 0.01, "images_per_second": 50.0, "grad_norm": None}
        writer.write("step", step=step, epoch=step / 10, loss=loss, **values)
    writer.close()
    (lines,) = EventTail(path).read()
    assert isinstance(lines, StepLines)
    return lines


def changed(lines: StepLines, **values: object) -> StepLines:
    """With some values of one line in the middle replaced."""
    rows = [json.loads(line) for line in lines.data.splitlines()]
    rows[len(rows) // 2] |= values
    return StepLines(0, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode())


def test_what_the_trainer_writes_becomes_columns(tmp_path: Path):
    columns = step_columns(written(tmp_path / "events.jsonl", [0.5, math.nan, *[1.0] * FEW]))
    assert columns is not None
    assert columns.step.tolist() == [*range(1, FEW + 3)]
    assert columns.loss[0] == 0.5
    assert np.isnan(columns.loss).tolist() == [False, True, *[False] * FEW]
    assert columns.epoch.tolist() == [step / 10 for step in columns.step.tolist()]
    assert (set(columns.lr.tolist()), set(columns.images_per_second.tolist())) == ({0.01}, {50.0})
    assert (columns.time > 1.7e9).all()


def test_a_few_lines_take_the_slow_way(tmp_path: Path):
    assert step_columns(written(tmp_path / "events.jsonl", [1.0] * (FEW - 1))) is None


@pytest.mark.parametrize(
    "values",
    [
        {"loss": "low"},
        {"loss": True},
        {"loss": 1e17},
        {"step": -1},
        {"step": 1},  # back in its middle
        {"step": 1.5},
        {"step": 10**30},
        {"time": None},
        {"note": "mine"},
        {"kind": "eval"},
    ],
)
def test_a_line_of_another_kind_takes_all_of_them_the_slow_way(tmp_path: Path, values: dict):
    lines = written(tmp_path / "events.jsonl", [1.0] * 20, first=100)
    assert step_columns(changed(lines)) is not None
    assert step_columns(changed(lines, **values)) is None


def test_a_beginning_ends_with_the_step_that_is_named(tmp_path: Path):
    columns = step_columns(written(tmp_path / "events.jsonl", [1.0] * 20))
    assert columns is not None
    for step, count in ((0, 0), (7, 7), (20, 20), (math.inf, 20)):
        part = columns.until(step)
        assert isinstance(part, StepColumns)
        assert [len(column) for column in part] == [count] * len(StepColumns._fields)
