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

from trainer.events import Event
from trainer.files import file_size
from trainer.runs import RUN_ID, Run, RunError, RunState
from trainer.status import PART
from ui.thinning import SMOOTHING, Evaluation, Point, Row, Smoother, Thinned
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
        self.images_per_second: float | None = None
        self.best_accuracy: float | None = None  # percent
        self.num_nonfinite = self.first_nonfinite = 0
        self.elapsed = 0.0  # seconds of training up to the newest event, without the time between two processes
        self.recent: deque[Point] = deque(maxlen=RECENT)
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
        holds = True
        while events := self.state.update(PART):
            for event in events:
                step = _whole(event.get("step"))
                if event["kind"] == "start":
                    self._segment += 1
                    if self._segment > len(self._starts):
                        self._starts.append(step)
                        holds = holds and step >= self.last_step
                elif event["kind"] in ("step", "eval") and step > min(self._starts[self._segment :], default=math.inf):
                    continue
                if holds:
                    self._fold(event)
        return holds

    def _fold(self, event: Event) -> None:
        kind, time = event["kind"], _number(event.get("time"))
        if kind == "start" and time is not None:
            self.last_step = _whole(event.get("step"))
            self.origin = time - (self.elapsed if self.last_step else 0)
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
        self.recent.append(point)
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
    def seconds_per_step(self) -> float | None:
        """Measured over the points held unthinned, so evaluations count as they should."""
        if len(self.recent) < 2:
            return None
        first, last = self.recent[-min(200, len(self.recent))], self.recent[-1]
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
