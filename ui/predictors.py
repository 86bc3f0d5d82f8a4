"""Runs that can answer, their networks kept loaded, and test pictures to ask them about. torch only when asked."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainer.config import TrainConfig
from trainer.run_list import iter_runs
from trainer.runs import Run, RunState
from ui.curves import Curves

if TYPE_CHECKING:
    from trainer.predict import Predictor

NEWEST = "latest"
KEPT = 3  # networks in memory; the largest takes 45 MB
SHOWN_RUNS = 50
SHOWN_EXAMPLES = 20


def _trained(runs_dir: Path) -> Iterator[Run]:
    """Runs with a checkpoint, newest first."""
    for run in iter_runs(runs_dir):
        if run.has_checkpoint:
            yield run


def choose_run(curves: Curves, runs_dir: Path, run_id: Any) -> Run | None:
    """The run of an id, which may come from anywhere; of `latest` the newest that has a checkpoint."""
    if run_id == NEWEST:
        return next(_trained(runs_dir), None)
    try:
        return curves.state(run_id).run if isinstance(run_id, str) else None
    except ValueError:
        return None


def run_choices(curves: Curves, runs_dir: Path) -> list[tuple[str, str]]:
    """(words, value) for the list of runs; the first is the newest, whichever that is when it is asked."""
    named = []
    for run, _ in zip(_trained(runs_dir), range(SHOWN_RUNS), strict=False):
        try:
            named.append((_words(curves.state(run.id)), run.id))
        except ValueError:  # deleted just now, or settings of another version
            continue
    first = f"Newest: {named[0][0]}" if named else "The newest run"
    return [(first, NEWEST), *named]


def _words(state: RunState) -> str:
    config = state.run.config()
    name = f"{config.label}, {config.parallel}" if config.label else state.run.id
    best = "" if state.best_accuracy is None else f", {100 * state.best_accuracy:.2f} %"
    return f"{name}{best}"


class Predictors:
    """Networks by checkpoint file, so that a new one is loaded when the file changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[str, int, int], Predictor] = {}

    def load(self, run: Run, checkpoint: Any) -> tuple["Predictor", str]:
        """(network, which checkpoint it is): `last` where a run has no best one yet. Raises ValueError."""
        from trainer.predict import load_predictor

        wished: Literal["best", "last"] = "last" if checkpoint == "last" else "best"
        if wished == "best" and not os.path.lexists(run.checkpoint_path("best")):
            wished = "last"
        with self._lock:
            _one_thread()
            try:
                status = run.checkpoint_path(wished).stat()
                key = (str(run.checkpoint_path(wished)), status.st_mtime_ns, status.st_size)
            except OSError:
                key = ("", 0, 0)
            found = self._loaded.pop(key, None)
            if found is None:
                found = load_predictor(run, wished)
                found.predict(np.zeros((1, 32, 32, 3), np.uint8))  # the first one is slow and would be timed
            self._loaded[key] = found  # the most recently used is the last
            while len(self._loaded) > KEPT:
                del self._loaded[next(iter(self._loaded))]
        return found, wished


def _one_thread() -> None:
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@dataclass(frozen=True)
class Examples:
    """One test picture of each class. `is_own`: of the data set that the run was trained on."""

    pictures: list[np.ndarray]
    names: list[str]
    is_own: bool

    def items(self) -> Iterator[tuple[np.ndarray, str]]:
        return zip(self.pictures, self.names, strict=True)


def examples(run: Run | None) -> Examples:
    """Test pictures of the run's data set if it is in the cache, else generated ones, else none."""
    from trainer.datasets.prepare import DataError, cached, prepare

    prepared = None
    try:
        prepared = cached(run.config()) if run else None
        is_own = prepared is not None
        prepared = prepared or prepare(TrainConfig(dataset="shapes"), lambda _text: None)
    except (DataError, ValueError):
        return Examples([], [], False)
    labels = np.asarray(prepared.test_labels)
    pictures, names = [], []
    for index, name in enumerate(prepared.classes[:SHOWN_EXAMPLES]):
        places = np.flatnonzero(labels == index)
        if len(places):
            pictures.append(np.array(prepared.test_images[places[0]]))
            names.append(name)
    return Examples(pictures, names, is_own)
