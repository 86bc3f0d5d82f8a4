"""What the charts draw, per run: read once from `events.jsonl` for all browsers, thinned, smoothed, sent as deltas.

Any run fits in a few thousand rows: bins of 2^k steps keep their lowest and highest loss, so no spike is lost, and a
point that was drawn is never moved; a longer run only merges bins. A reader holds a cursor and gets what is new.
"""

import math
import os
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.event_reader import StepLines, events_of
from trainer.events import Event
from trainer.files import file_size
from trainer.runs import RUN_ID, Run, RunError, RunState
from trainer.verdict import Summary, mean_step
from ui.step_columns import StepColumns, step_columns
from ui.thinning import SMOOTHING, Evaluation, Point, Points, Row, Smoother, Thinned
from ui.waiting import Board

POINT_BINS = 1024  # at most two points each, and a third where the loss was not finite
TEST_BINS = 256
RECENT = 2000  # points held unthinned, for the readers that are nearly up to date
KEPT_RUNS = 64


@dataclass(frozen=True)
class Cursor:
    """How far a reader is: `points` and `tests` rows of the history called `version`. The default has seen nothing."""

    version: str = ""
    points: int = 0
    tests: int = 0


class Recent:
    """The newest `RECENT` points. Many at once are kept as columns until somebody asks."""

    def __init__(self) -> None:
        self._made: deque[Point] = deque(maxlen=RECENT)
        self._waiting: list[Points] = []

    def add(self, point: Point) -> None:
        self.points().append(point)

    def extend(self, points: Points) -> None:
        self._waiting.append(points.last(RECENT))
        while sum(len(waiting.step) for waiting in self._waiting[1:]) >= RECENT:
            del self._waiting[0]

    def points(self) -> deque[Point]:
        for waiting in self._waiting:
            self._made.extend(waiting.at(slice(None)))
        self._waiting.clear()
        return self._made


class History:
    """One run's facts and curves, kept up to date by `update`. Not thread-safe; `Curves` holds the lock."""

    def __init__(self, run: Run):
        self.run = run
        self._starts: list[int] = []  # the step of each `start` event
        self._restart()

    def _restart(self) -> None:
        self.state = RunState(self.run)
        self._segment = 0  # how many of `_starts` were met
        self.version = secrets.token_hex(4)  # a reader with another one starts anew
        self.num_points = self.num_tests = 0
        self.anatomy: list[Event] = []  # of the newest process; they grow rarer as it goes on
        self._mean_step: tuple[int, Summary | None] = 0, None
        self.images_per_second: float | None = None
        self.best_accuracy: float | None = None  # percent
        self.num_nonfinite = self.first_nonfinite = 0
        self.elapsed = 0.0  # seconds of training up to the newest event, without the time between two processes
        self._recent = Recent()
        self.recent_tests: deque[Evaluation] = deque(maxlen=RECENT)
        self._points = Thinned(POINT_BINS, "loss")
        self._tests = Thinned(TEST_BINS, "accuracy")
        self._smoothers = [Smoother(weight) for weight in SMOOTHING.values()]
        self.origin: float | None = None  # Unix time that counts as 0 elapsed
        self.last_step = 0  # the newest that stands
        self._size = 0

    def update(self) -> None:
        """Read what is new. Starts anew if the file was cut or a resumed run took steps back."""
        size = file_size(self.run.events_path)
        if size < self._size:
            self._starts.clear()
            self._restart()
        while not self._read():
            self._restart()  # and again, now that it is known which steps do not stand
        self._size = size

    def _read(self) -> bool:
        """Fold the new events; those that a later `start` takes back are left out. False if one was folded already."""
        self._holds = True
        while True:
            for block in self.state.update():
                columns = step_columns(block) if isinstance(block, StepLines) else None
                if columns is not None:
                    self._fold_many(columns.until(self._last_that_stands))
                else:
                    for _, event in events_of([block]):
                        self._meet(event)
            if not self.state.has_more:
                return self._holds

    @property
    def _last_that_stands(self) -> float:
        """The step where a later `start` goes on: what was read before that start and lies beyond does not stand."""
        return min(self._starts[self._segment :], default=math.inf)

    def _meet(self, event: Event) -> None:
        step = _whole(event.get("step"))
        if event["kind"] == "start":
            self._segment += 1
            if self._segment > len(self._starts):
                self._starts.append(step)
                self._holds = self._holds and step >= self.last_step
        elif event["kind"] in ("step", "eval") and step > self._last_that_stands:
            return
        if self._holds:
            self._fold(event)

    def _fold_many(self, columns: StepColumns) -> None:
        """The same as folding these `step` events one by one."""
        count = len(columns.step)
        if not count or not self._holds:
            return
        self.origin = float(columns.time[0]) if self.origin is None else self.origin
        elapsed = np.maximum.accumulate(np.maximum(self.elapsed, columns.time - self.origin))
        self.elapsed, self.last_step = float(elapsed[-1]), max(self.last_step, int(columns.step[-1]))
        is_gap = np.isnan(columns.loss)
        if is_gap.any():
            self.num_nonfinite += int(is_gap.sum())
            self.first_nonfinite = self.first_nonfinite or int(columns.step[is_gap.argmax()])
        speed = float(columns.images_per_second[-1])
        self.images_per_second = None if math.isnan(speed) else speed
        light, strong = (smoother.extend(columns.loss) for smoother in self._smoothers)
        points = Points(
            columns.step, elapsed / 60, np.nan_to_num(columns.epoch), columns.loss, light, strong, columns.lr
        )
        self.num_points += count
        self._recent.extend(points)
        self._points.extend(points)

    def _fold(self, event: Event) -> None:
        kind, time = event["kind"], _number(event.get("time"))
        if kind == "start" and time is not None:
            self.last_step = _whole(event.get("step"))
            self.origin = time - (self.elapsed if self.last_step else 0)
        if kind == "start":
            self.anatomy, self._mean_step = [], (0, None)
        if kind == "anatomy" and event.get("ranks") and event.get("steps", 0) > 0:
            self.anatomy.append(event)
        if kind not in ("step", "eval"):
            if kind == "end" and time is not None and self.origin is not None:
                self.elapsed = max(self.elapsed, time - self.origin)
            return
        step = _whole(event.get("step"))
        if time is not None:
            self.origin = time if self.origin is None else self.origin
            self.elapsed = max(self.elapsed, time - self.origin)
        self.last_step = max(self.last_step, step)
        common = step, self.elapsed / 60, _number(event.get("epoch")) or 0.0, _number(event.get("loss"))
        if kind == "step":
            self._add_point(event, *common)
        else:
            self._add_test(event, *common)

    def _add_point(self, event: Event, step: int, minutes: float, epoch: float, loss: float | None) -> None:
        light, strong = (smoother.add(loss) for smoother in self._smoothers)
        point = Point(step, minutes, epoch, loss, light, strong, _number(event.get("lr")))
        if loss is None:
            self.num_nonfinite += 1
            self.first_nonfinite = self.first_nonfinite or step
        self.images_per_second = _number(event.get("images_per_second"))
        self.num_points += 1
        self._recent.add(point)
        self._points.add(point)

    def _add_test(self, event: Event, step: int, minutes: float, epoch: float, loss: float | None) -> None:
        share = _number(event.get("accuracy"))
        accuracy = None if share is None else 100 * share
        if accuracy is not None:
            self.best_accuracy = max(accuracy, self.best_accuracy or 0.0)
        test = Evaluation(step, minutes, epoch, loss, accuracy)
        self.num_tests += 1
        self.recent_tests.append(test)
        self._tests.add(test)

    @property
    def recent(self) -> deque[Point]:
        """The newest points, none of them left out."""
        return self._recent.points()

    @property
    def mean_step(self) -> Summary | None:
        """What a step of the newest process is made of; None while nothing is known."""
        if self._mean_step[0] != len(self.anatomy):
            self._mean_step = len(self.anatomy), mean_step(self.anatomy)
        return self._mean_step[1]

    @property
    def seconds_per_step(self) -> float | None:
        """Measured over the points held unthinned, so evaluations count as they should."""
        recent = self.recent
        if len(recent) < 2:
            return None
        first, last = recent[-min(200, len(recent))], recent[-1]
        return (last.minutes - first.minutes) * 60 / (last.step - first.step) if last.step > first.step else None

    def since(self, cursor: Cursor, max_bins: int = POINT_BINS) -> dict[str, Any]:
        """What a reader lacks: {version, points, tests: counts for its next cursor; reset; rows, test_rows: columns}.

        With `reset` the rows are the whole history, thinned to `max_bins` bins; else those after the cursor, all of
        them. Columns are named as in Point and Evaluation; empty ones are left out.
        """
        new_points, new_tests = self.num_points - cursor.points, self.num_tests - cursor.tests
        reply: dict[str, Any] = {"version": self.version, "points": self.num_points, "tests": self.num_tests}
        follows = 0 <= new_points <= len(self.recent) and 0 <= new_tests <= len(self.recent_tests)
        if cursor.version == self.version and follows:
            rows: list[Row] = [*self.recent]
            test_rows: list[Row] = [*self.recent_tests]
            rows, test_rows = rows[len(rows) - new_points :], test_rows[len(test_rows) - new_tests :]
        else:
            reply["reset"] = True
            rows, test_rows = self._points.rows(max_bins), self._tests.rows(TEST_BINS)
            if rows and rows[-1].step < self.recent[-1].step:  # the line ends where the run is
                rows.append(self.recent[-1])
        if rows:
            reply["rows"] = _columns(rows)
        if test_rows:
            reply["test_rows"] = _columns(test_rows)
        return reply


def _whole(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _number(value: object) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < float("inf") else None  # type: ignore


def _columns(rows: list[Row]) -> dict[str, list]:
    """Five digits are more than a chart can show and keep the reply small; steps stay exact."""
    columns = dict(zip(rows[0]._fields, map(list, zip(*rows, strict=True)), strict=True))
    for name, column in columns.items():
        if name != "step":
            columns[name] = [None if value is None else float(f"{value:.5g}") for value in column]
    return columns


class Curves:
    """All runs of a directory, each read once for all browsers, and who waits for whom. Thread-safe."""

    def __init__(self, runs_dir: Path):
        self.runs_dir = runs_dir
        self.board = Board(runs_dir)
        self._lock = threading.Lock()
        self._histories: OrderedDict[str, tuple[threading.Lock, History]] = OrderedDict()

    @contextmanager
    def history(self, run_id: str) -> Iterator[History]:
        """The run's history, up to date and not changing in the `with` block. Raises RunError if there is none."""
        if not RUN_ID.fullmatch(run_id):
            raise RunError(f"{run_id!r} is not the id of a run")
        run = Run(self.runs_dir / run_id)
        with self._lock:
            if not os.path.isfile(run.path / "config.json"):
                self._histories.pop(run_id, None)
                raise RunError(f"there is no run {run_id} in {self.runs_dir}")
            lock, history = self._histories.setdefault(run_id, (threading.Lock(), History(run)))
            self._histories.move_to_end(run_id)
            while len(self._histories) > KEPT_RUNS:
                self._histories.popitem(last=False)
        with lock:
            history.update()
            yield history

    def state(self, run_id: str) -> RunState:
        """The run's facts, read now. Shared: read it, do not change it. Raises RunError if there is no such run."""
        with self.history(run_id) as history:
            return history.state
