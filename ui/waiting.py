"""Who is at work, who waits and for whom, looked up once for all browsers. Imports no gradio and no torch."""

import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.config import TrainConfig
from trainer.queue import turns, waiting_runs
from trainer.run_list import iter_runs
from trainer.runs import Run

FRESH = 0.5  # seconds for which one look serves all browsers


@dataclass(frozen=True)
class Waiting:
    """A queued run's place, from 1, and the runs that must end first; none if it is about to start."""

    place: int
    before: tuple[Run, ...]


@dataclass(frozen=True)
class _Draft(Run):
    """A run that nobody has started, asked about as if it were the last in the queue."""

    settings: TrainConfig

    def config(self) -> TrainConfig:
        return self.settings


class Board:
    """The queue of one runs directory as it was at most half a second ago. Thread-safe."""

    def __init__(self, runs_dir: Path):
        self.runs_dir = runs_dir
        self._lock = threading.Lock()
        self._looked_at = 0.0
        self._gone: dict[str, int] = {}  # runs whose process is gone, and when the file that names it was written
        self._at_work: list[tuple[str, bool]] = []  # (id, asked to stop)
        self._waiting: dict[str, Waiting] = {}
        self._version = 0

    def place(self, run: Run) -> Waiting | None:
        """None if the run is not queued."""
        with self._lock:
            self._look()
            return self._waiting.get(run.id)

    @property
    def version(self) -> int:
        """Another number when a run came, went, was asked to stop, or changed its place."""
        with self._lock:
            self._look()
            return self._version

    def would_wait(self, config: TrainConfig) -> bool:
        """Whether a run with these settings, if it were started now, had to wait for others."""
        with self._lock:
            self._looked_at = 0.0  # what a press of Start has just changed counts
            self._look()
            if not self._at_work and not self._waiting:
                return False
        draft = _Draft(self.runs_dir / "draft", config)
        return any(isinstance(turn, list) for run, turn in turns(self.runs_dir, extra=draft) if run.id == draft.id)

    def _look(self) -> None:
        if time.monotonic() - self._looked_at < FRESH:
            return
        self._at_work = [(run.id, run.is_asked_to_stop) for run in self._find_at_work()]
        self._waiting = {}
        for run, turn in turns(self.runs_dir) if waiting_runs(self.runs_dir) else ():
            if run.process() is not None:  # its trainer was started and is about to claim it
                self._at_work.append((run.id, False))
                continue
            before = tuple(turn) if isinstance(turn, list) else ()
            self._waiting[run.id] = Waiting(len(self._waiting) + 1, before)
        places = [(run_id, waiting.place) for run_id, waiting in self._waiting.items()]
        self._version = zlib.crc32(repr((self._at_work, places)).encode())
        self._looked_at = time.monotonic()

    def _find_at_work(self) -> list[Run]:
        """As `trainer.queue.runs_at_work`, but a claim whose process is gone is not read again: there are many."""
        found, gone = [], {}
        for run in iter_runs(self.runs_dir):
            try:
                written = (run.path / "process.json").stat().st_mtime_ns
            except OSError:  # not claimed
                continue
            if self._gone.get(run.id) != written and run.is_at_work(run.process()):
                found.append(run)
            else:
                gone[run.id] = written
        self._gone = gone
        return found


def config_of(run: Run) -> TrainConfig | None:
    """Its settings; None if it was deleted or written by another version."""
    try:
        return run.config()
    except ValueError:
        return None


def name_of(run: Run) -> str:
    """What people call it: its label, else its id."""
    config = config_of(run)
    return config.label if config and config.label else run.id


def ordinal(place: int) -> str:
    """As in '2nd'."""
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


def in_words(waiting: Waiting) -> str:
    """As in 'Next in the queue: waits for A and B to end'."""
    where = "Next in the queue" if waiting.place == 1 else f"{ordinal(waiting.place)} in the queue"
    return f"{where}: waits for {_list(waiting.before)} to end" if waiting.before else f"{where}: starts in a moment"


def _list(runs: Sequence[Run]) -> str:
    names = [name_of(run) for run in runs]
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
