"""Networks that can answer, kept loaded, and test pictures to ask them about. torch only when asked.

A network is that of a run, or the one that comes with the program, which also answers while no run has trained.
"""

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
from trainer.weights import PRETRAINED, PRETRAINED_FILE, read_header
from ui.curves import Curves

if TYPE_CHECKING:
    from trainer.predict import Predictor

NEWEST = "latest"
KEPT = 3  # networks in memory; the largest takes 45 MB
SHOWN_RUNS = 50
SHOWN_EXAMPLES = 20


@dataclass(frozen=True)
class Network:
    """Whose network answers: a run's, or with `run` None the pretrained one."""

    run: Run | None = None

    @property
    def id(self) -> str:
        return self.run.id if self.run else PRETRAINED

    def path(self, checkpoint: str) -> Path:
        return self.run.checkpoint_path(checkpoint) if self.run else PRETRAINED_FILE

    def name(self, curves: Curves) -> str:
        """Raises ValueError if the run was deleted, or the file cannot be used."""
        if self.run:
            return curves.state(self.run.id).run.config().label or self.run.id
        return pretrained_name()


def pretrained_name() -> str:
    """Raises ValueError if the file that should come with the program cannot be used."""
    return f"Pretrained: {read_header(PRETRAINED_FILE).note}"


def _trained(runs_dir: Path) -> Iterator[Run]:
    """Runs with a checkpoint, newest first."""
    for run in iter_runs(runs_dir):
        if run.has_checkpoint:
            yield run


def choose_network(curves: Curves, runs_dir: Path, choice: Any) -> Network | None:
    """The network of a run's id, which may come from anywhere; None if there is no such run.

    Of `latest` that of the newest run that has a checkpoint, and the pretrained one while there is none.
    """
    if choice == NEWEST:
        return Network(next(_trained(runs_dir), None))
    if choice == PRETRAINED:
        return Network()
    try:
        return Network(curves.state(choice).run) if isinstance(choice, str) else None
    except ValueError:
        return None


def network_choices(curves: Curves, runs_dir: Path) -> list[tuple[str, str]]:
    """(words, value) for the list of networks; the first is the newest, whichever that is when it is asked."""
    named = []
    for run, _ in zip(_trained(runs_dir), range(SHOWN_RUNS), strict=False):
        try:
            named.append((_words(curves.state(run.id)), run.id))
        except ValueError:  # deleted just now, or settings of another version
            continue
    first = f"Newest: {named[0][0]}" if named else "Pretrained, until a run has trained"
    try:
        pretrained = [(pretrained_name(), PRETRAINED)]
    except ValueError:
        pretrained = []
    return [(first, NEWEST), *named, *pretrained]


def _words(state: RunState) -> str:
    config = state.run.config()
    name = f"{config.label}, {config.parallel}" if config.label else state.run.id
    best = "" if state.best_accuracy is None else f", {100 * state.best_accuracy:.2f} %"
    return f"{name}{best}"


class Predictors:
    """Networks by file, so that a new one is loaded when the file changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[tuple[str, int, int], Predictor] = {}

    def load(self, network: Network, checkpoint: Any) -> tuple["Predictor", str]:
        """(network, which checkpoint it is): `last` where a run has no best one yet. Raises ValueError."""
        from trainer.predict import load_predictor
        from trainer.weights import read_weights

        wished: Literal["best", "last"] = "last" if checkpoint == "last" else "best"
        if wished == "best" and not os.path.lexists(network.path("best")):
            wished = "last"
        with self._lock:
            _one_thread()
            try:
                status = network.path(wished).stat()
                key = (str(network.path(wished)), status.st_mtime_ns, status.st_size)
            except OSError:
                key = ("", 0, 0)
            found = self._loaded.pop(key, None)
            if found is None:
                found = load_predictor(network.run, wished) if network.run else read_weights(PRETRAINED_FILE)
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
    """One test picture of each class. `is_own`: of the data set that the network was trained on.

    Without pictures `names` is what the network knows.
    """

    pictures: list[np.ndarray]
    names: list[str]
    is_own: bool

    def items(self) -> Iterator[tuple[np.ndarray, str]]:
        return zip(self.pictures, self.names, strict=True)


def examples(network: Network | None) -> Examples:
    """Test pictures of the network's data set if it is in the cache; else generated ones for a run, else none."""
    from trainer.datasets.prepare import DataError, cached, prepare

    if network is None:
        return Examples([], [], False)
    try:
        prepared = cached(network.run.config() if network.run else TrainConfig())
        is_own = prepared is not None
        if prepared is None and network.run is None:  # a generated shape is nothing that it knows
            return Examples([], read_header(PRETRAINED_FILE).classes, False)
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
