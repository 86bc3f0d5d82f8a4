"""Whose turn it is: runs wait for their devices in the order in which they were queued. Imports no torch.

A queued run is a directory that nobody has claimed. Whoever wants to train one (a shell, a trainer that a page
started) comes here, and under one lock for the runs directory takes it if its devices are free and no run before it
waits for them. A device is busy as long as the process that claimed it lives. The CPU counts as one device.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from trainer.config import ConfigError, TrainConfig
from trainer.devices import cpu_cores, cpu_has_bf16, list_gpus
from trainer.files import open_to_append
from trainer.log import say
from trainer.placement import Placement, place
from trainer.processes import alive, is_suspended, recorded_identity
from trainer.records import hold, is_held
from trainer.run_list import age_order, iter_runs
from trainer.runs import Run, RunError, RunStatus

POLL = 0.5  # seconds between two looks at the queue
LOCK_PATIENCE = 5.0  # seconds; it is held for milliseconds, unless its holder was suspended
CPU = "cpu"
_ANY = "*"  # what a run holds that does not say what it holds

Turn = Placement | list[Run] | ConfigError  # where it may train now, or the runs it waits for, or why it never can


@contextmanager
def locked(runs_dir: Path) -> Iterator[None]:
    """One at a time, over all threads and processes that use this runs directory. Raises RunError."""
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(open_to_append(runs_dir / ".lock"), "ab")
    except OSError as error:
        raise RunError(f"the runs directory {runs_dir} cannot be written: {error.strerror}") from error
    with file:
        _lock(file, runs_dir)
        yield


def _lock(file: IO, runs_dir: Path) -> None:
    """The kernel frees it when the file is closed or this process dies."""
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RunError(
                    f"another process has held the lock of {runs_dir} for {LOCK_PATIENCE:g} s: is one suspended?"
                ) from None
            time.sleep(0.01)
        except OSError as error:
            raise RunError(f"the runs directory {runs_dir} cannot be locked: {error.strerror}") from error


def placement_now(config: TrainConfig, busy: Sequence[str] = ()) -> Placement:
    """Where `config` would run on this machine, where it leaves the choice on GPUs that are not `busy`.

    Raises ConfigError.
    """
    gpus = sorted(list_gpus(), key=lambda gpu: gpu.uuid in busy)
    return place(config, gpus, cpu_cores(), cpu_has_bf16())


def devices_of(placement: Placement) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in placement.gpus) or (CPU,)


def waiting_runs(runs_dir: Path) -> list[Run]:
    """The queue: runs that nobody has claimed, first come first; a trainer that is starting keeps its turn."""
    unclaimed = [run for run in iter_runs(runs_dir) if not run.has_claim]
    waiting = [run for run in unclaimed if _waits(run)]
    return sorted(waiting, key=lambda run: (not _starts(run), run.queued_at, age_order(run)))


def _waits(run: Run) -> bool:
    """Not so if a trainer was started for it and died before it could claim it."""
    launch = run.launch()
    return launch.get("pid") is None or bool(launch.get("waiting")) or has_trainer(run)


def _starts(run: Run) -> bool:
    return not run.launch().get("waiting") and has_trainer(run)


def has_trainer(run: Run) -> bool:
    """Whether a living trainer was started for this queued run, or waits for its turn; it may not be seen from here."""
    known = recorded_identity(run.launch())
    return (known is not None and alive(known)) or is_held(run.path)


def runs_at_work(runs_dir: Path, leaving: Run | None = None) -> Iterator[tuple[Run, list[str]]]:
    """Claimed runs but `leaving` whose process lives, newest first, with the devices that they hold."""
    for run in iter_runs(runs_dir):
        if leaving is not None and run.id == leaving.id:
            continue
        record = run.process() if run.has_claim else None
        if record and run.is_at_work(record):
            yield run, record.get("devices") or [_ANY]


def turns(runs_dir: Path, extra: Run | None = None, leaving: Run | None = None) -> Iterator[tuple[Run, Turn]]:
    """The queue in its order. What waits keeps its devices from those behind it: nobody is overtaken for ever.

    `extra` is one that is not there yet, behind all others; the devices of `leaving` count as free.
    """
    taken = {device: run for run, devices in runs_at_work(runs_dir, leaving) for device in devices}
    for run in [*waiting_runs(runs_dir), *([extra] if extra else [])]:
        try:
            placement = placement_now(run.config(), list(taken))
        except ConfigError as error:
            yield run, error
            continue
        except RunError:  # deleted meanwhile
            continue
        wanted = devices_of(placement)
        before = [taken[_ANY]] if _ANY in taken else list(dict.fromkeys(taken[d] for d in wanted if d in taken))
        yield run, before or placement
        if not _is_suspended(run):  # with Ctrl-Z, for nobody knows how long
            for device in wanted:
                taken.setdefault(device, run)


def _is_suspended(run: Run) -> bool:
    waiter = recorded_identity(run.launch())
    return waiter is not None and is_suspended(waiter)


def wait_for_turn(run: Run) -> Placement | None:
    """Wait until the run's devices are free, and claim it. None if it was stopped or deleted while it waited.

    Raises ConfigError if this machine cannot place it, RunError if another process claimed it.
    """
    told: list[Run] = []
    while True:
        answer = _try(run)
        if not isinstance(answer, list):
            return answer
        if answer and answer != told:
            names = " and ".join(other.id for other in answer)
            say(f"queued: {run.id} starts when {names} {'has' if len(answer) == 1 else 'have'} ended")
            told = answer
        time.sleep(POLL)


def _try(run: Run) -> Placement | list[Run] | None:
    with locked(run.path.parent):
        if not run.is_there:
            say(f"{run.id} was deleted")
            return None
        if run.has_claim:
            if run.state().status == RunStatus.STOPPED:
                return None
            raise RunError(f"{run.id} was already started, by process {(run.process() or {}).get('pid')}")
        if run.is_asked_to_stop:
            _cancel(run)
            say(f"{run.id} was taken out of the queue")
            return None
        if not hold(run.path):  # another one waits to train it, or does so though its process.json was removed
            return []
        answer = next((turn for other, turn in turns(run.path.parent) if other.id == run.id), None)
        if answer is None:  # its config.json is away, for a moment or for good
            return []
        if isinstance(answer, ConfigError):
            raise answer
        if isinstance(answer, Placement):
            run.claim(devices_of(answer))
        else:
            with suppress(OSError):  # on a full disk: it was noted before, or another may start it
                run.wait_here()
        return answer


def claim_at_once(run: Run, placement: Placement) -> None:
    """Claim a run that cannot wait for its turn, as the first rank of a group that meets now; an ended one goes on.

    Raises RunError if it is at work, or another run is on one of its devices.
    """
    with locked(run.path.parent):
        if run.has_claim and not run.state().status.living:
            run.requeue()
        devices = devices_of(placement)
        for other, held in runs_at_work(run.path.parent):
            if other.id != run.id and (_ANY in held or set(held) & set(devices)):
                raise RunError(f"{other.id} is at work on the same device: wait until it has ended")
        run.claim(devices)


def cancel(run: Run) -> bool:
    """Take a queued run out of the queue: it counts as stopped and can be resumed. False if it is not queued."""
    with locked(run.path.parent):
        if run.has_claim or run.state().status != RunStatus.QUEUED:
            return False
        _cancel(run)
        return True


def _cancel(run: Run) -> None:
    run.withdraw("stopped", "taken out of the queue")
