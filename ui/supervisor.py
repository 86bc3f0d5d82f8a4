"""What the page may do to runs: start, queue, stop, resume. Imports no gradio and no torch.

A run belongs to its directory, and its place in the queue to `trainer.queue`: nothing is kept here but what was read,
so any number of servers, shells and programs may share a runs directory, and a restarted server finds all runs as
they are.
"""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from trainer.background import TRAINER, start_waiting
from trainer.config import TrainConfig
from trainer.placement import Placement
from trainer.queue import cancel, locked, placement_now, runs_at_work, waiting_runs
from trainer.race import RACE_ID, Entrant, Race, Scaling, create_race, open_race
from trainer.run_list import age_order
from trainer.runs import RUN_ID, Run, RunError, RunState, RunStatus

LONGEST_QUEUE = 100  # runs
KEPT_STATES = 64  # runs


def placement(config: TrainConfig) -> Placement:
    """Where `config` would run on this machine now. Raises ConfigError."""
    return placement_now(config)


class Supervisor:
    """Acts on one runs directory. Thread-safe."""

    def __init__(self, runs_dir: Path, trainer: Sequence[str] = TRAINER):
        self.runs_dir = runs_dir.resolve()
        self._trainer = tuple(trainer)
        self._thread_lock = threading.Lock()
        self._stopping: set[str] = set()
        self._states: OrderedDict[str, RunState] = OrderedDict()

    def run(self, run_id: object) -> Run:
        """The run of an id, which may come from anywhere. Raises RunError."""
        if isinstance(run_id, str) and RUN_ID.fullmatch(run_id):
            run = Run(self.runs_dir / run_id)
            if os.path.isfile(run.path / "config.json"):
                return run
        raise RunError(f"there is no run {str(run_id)[:64]!r} here")

    def state(self, run: Run) -> RunState:
        """The run's facts, read now, of its events only the new ones. Shared: read it, do not change it."""
        with self._thread_lock:
            state = self._states.setdefault(run.id, RunState(run))
            self._states.move_to_end(run.id)
            while len(self._states) > KEPT_STATES:
                self._states.popitem(last=False)
            return state.read_all()

    def living(self) -> list[Run]:
        """The runs with a process at work, newest first, whoever started them."""
        found = [run for run, _ in runs_at_work(self.runs_dir)] + waiting_runs(self.runs_dir)
        living = {run.id: run for run in found if self.state(run).status.living}
        return sorted(living.values(), key=age_order, reverse=True)

    def queued(self) -> list[Run]:
        """The runs that wait for their devices, first come first."""
        return [run for run in waiting_runs(self.runs_dir) if self.state(run).status == RunStatus.QUEUED]

    def start(self, config: TrainConfig) -> Run:
        """A new run, started now or as soon as its devices are free.

        Raises ConfigError, or RunError if it cannot be started or too many wait already.
        """
        placement(config)
        if len(list(islice(waiting_runs(self.runs_dir), LONGEST_QUEUE))) >= LONGEST_QUEUE:
            raise RunError(f"{LONGEST_QUEUE} runs wait already: delete or cancel some of them first")
        run = Run.create(self.runs_dir, config)
        self._start(run)
        return run

    def resume(self, run_id: object, epochs: int) -> Run:
        """Queue a run that has ended, to train to `epochs` epochs in all. Raises ConfigError or RunError."""
        run = self.run(run_id)
        with locked(self.runs_dir):
            if run.state().status == RunStatus.QUEUED:
                raise RunError(f"{run.id} is queued already")
            placement(run.config().changed(epochs=epochs))
            run.prepare_resume(epochs)
        self._start(run)
        return run

    def _start(self, run: Run) -> None:
        start_waiting(self.runs_dir, self._trainer)
        state = run.state()
        if state.status == RunStatus.FAILED:
            raise RunError(state.error[:1].lower() + state.error[1:])

    def race(self, race_id: object) -> Race:
        """The race of an id, which may come from anywhere. Raises RunError."""
        if isinstance(race_id, str) and RACE_ID.fullmatch(race_id):
            return open_race(self.runs_dir, race_id)
        raise RunError(f"there is no race {str(race_id)[:64]!r} here")

    def start_race(self, base: TrainConfig, entrants: Sequence[Entrant], scaling: Scaling, repeats: int) -> Race:
        """A new race; its first run starts now or as soon as its devices are free. Raises ConfigError or RunError."""
        if len(list(islice(waiting_runs(self.runs_dir), LONGEST_QUEUE))) >= LONGEST_QUEUE - len(entrants) * repeats:
            raise RunError(f"with these runs more than {LONGEST_QUEUE} would wait: cancel some of them first")
        race = create_race(self.runs_dir, base, entrants, scaling, repeats)
        self.tick()
        return race

    def stop_race(self, race_id: object) -> None:
        """Take what waits out of the queue and stop what is at work, in the background. Raises RunError."""

        def stop_one(run: Run) -> None:
            with contextlib.suppress(RunError):  # it has ended meanwhile
                self.stop(run.id)

        self.race(race_id).stop(stop_one)

    def resume_race(self, race_id: object) -> int:
        """Queue again what was stopped or failed. Returns how many runs. Raises RunError."""
        count = self.race(race_id).resume()
        self.tick()
        return count

    def tick(self) -> None:
        """Start what waits and can be started; called each second. Troubles show in the runs and come again."""
        with contextlib.suppress(RunError):
            start_waiting(self.runs_dir, self._trainer)

    def stop(self, run_id: object) -> Run:
        """Ask a run to stop and see to it in the background that it does; takes a queued one out of the queue.

        Raises RunError if it has ended.
        """
        run = self.run(run_id)
        if cancel(run):  # a shell that waits to train it sees that within a second, and leaves
            return run
        status = run.state().status
        if not status.living:
            raise RunError(f"{run.id} is not training: it is {status}")
        with contextlib.suppress(OSError):  # a full disk: the ladder goes on without
            run.ask_to_stop()
        with self._thread_lock:
            if run.id in self._stopping:
                return run
            self._stopping.add(run.id)
        threading.Thread(target=self._see_it_stop, args=(run,), name=f"stop {run.id}", daemon=True).start()
        return run

    def _see_it_stop(self, run: Run) -> None:
        from trainer.stop import stop_run

        try:
            with contextlib.suppress(RunError):  # a process that the kernel holds: the page shows that it goes on
                stop_run(run)
        finally:
            with self._thread_lock:
                self._stopping.discard(run.id)
            self.tick()
