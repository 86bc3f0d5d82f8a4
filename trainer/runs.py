"""A run is a directory. Everything about it is read from there. Imports no torch.

    config.json     the settings, written whole before anything starts
    launch.json     pid and start time of the trainer that a page started; counts until that trainer claims the run
    process.json    pid, kernel start time, argv, versions of the process that trains; its creation claims the run
    events.jsonl    what happened (trainer.events)
    system.jsonl    CPU, memory and GPUs, each second
    train.log       all output
    ranks/<n>.json  pid, heartbeat, step and error of each rank
    last.pt previous.pt best.pt checkpoints, each with its SHA-256 beside it
    stop            its existence asks the run to stop

The status is derived from these files and the living processes each time; it is never stored.
"""

import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.config import ConfigError, TrainConfig
from trainer.events import EventWriter
from trainer.files import sync_folder
from trainer.processes import Identity, alive, identity, recorded_identity
from trainer.status import RunState, RunStatus

__all__ = ["RUN_ID", "Run", "RunError", "RunState", "RunStatus", "event_writer", "iter_runs", "list_runs", "open_run"]

CHECKPOINTS = ("last", "previous", "best")  # in the order in which a resumed run tries them
RUN_ID = re.compile(r"\d{8}-\d{6}-(single|dp|ddp)-[0-9a-f]{4}")


class RunError(ValueError):
    """What was asked of a run cannot be done; the text says why."""


def write_atomic(path: Path, text: str, sync: bool = False) -> None:
    """Replace `path` as a whole: a reader sees the old text or the new, never a part; with `sync` a power cut too."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if it is missing, torn or something else."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Run:
    """A handle on one run directory; holds no state of its own."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def log_path(self) -> Path:
        return self.path / "train.log"

    @property
    def stop_path(self) -> Path:
        return self.path / "stop"

    @property
    def ranks_path(self) -> Path:
        return self.path / "ranks"

    def checkpoint_path(self, name: str) -> Path:
        assert name in CHECKPOINTS
        return self.path / f"{name}.pt"

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is something to go on from; whether it can be used shows when it is read."""
        return any(os.path.lexists(self.checkpoint_path(name)) for name in CHECKPOINTS)

    @classmethod
    def create(cls, runs_dir: Path, config: TrainConfig) -> "Run":
        """A new directory with its config.json. Raises RunError if it cannot be written."""
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            while True:
                stamp = time.strftime("%Y%m%d-%H%M%S")
                run = cls(runs_dir / f"{stamp}-{config.parallel}-{secrets.token_hex(2)}")
                # Prepared under another name: no reader ever meets a run without its config.
                draft = runs_dir / f".{run.id}"
                draft.mkdir()
                (draft / "config.json").write_text(config.model_dump_json(indent=1))
                if not run.path.exists():
                    os.rename(draft, run.path)
                    return run
                shutil.rmtree(draft)
        except OSError as error:
            raise RunError(f"the run directory in {runs_dir} cannot be written: {error}") from error

    def config(self) -> TrainConfig:
        """Raises RunError if config.json is missing or not readable, ConfigError if a setting is not valid."""
        try:
            return TrainConfig.from_json((self.path / "config.json").read_text())
        except OSError as error:
            raise RunError(f"{self.path} is not a run: its config.json cannot be read ({error.strerror})") from error

    def write_config(self, config: TrainConfig) -> None:
        write_atomic(self.path / "config.json", config.model_dump_json(indent=1))

    @property
    def launch_path(self) -> Path:
        return self.path / "launch.json"

    @property
    def has_claim(self) -> bool:
        """Whether a trainer got as far as claiming the run."""
        return (self.path / "process.json").exists()

    def process(self) -> dict[str, Any] | None:
        """Who has claimed the run; before that, who was launched to do so; None if nobody was."""
        return read_json(self.path / "process.json") or read_json(self.launch_path)

    def identity(self) -> Identity | None:
        """Who trains, or trained, this run."""
        return recorded_identity(self.process())

    def rank_records(self) -> list[dict[str, Any]]:
        """What each rank wrote about itself, in the order of the ranks."""
        records = [read_json(path) for path in self.ranks_path.glob("*.json")]
        return sorted((r for r in records if r and "rank" in r), key=lambda r: r["rank"])

    def rank_identities(self) -> list[Identity]:
        return [known for known in map(recorded_identity, self.rank_records()) if known]

    def claim(self) -> None:
        """Make this process the one that trains the run. Raises RunError if another one has it."""
        size = self.events_path.stat().st_size if self.events_path.exists() else 0
        known = identity(os.getpid())
        assert known is not None
        record = {
            "pid": known[0],
            "start": known[1],
            "started": time.time(),
            "argv": sys.argv,
            "events_offset": size,  # what lies before it was written by an earlier process
            "versions": _versions(),
        }
        draft = self.path / f".process.{os.getpid()}"
        try:
            draft.write_text(json.dumps(record, indent=1))
            os.link(draft, self.path / "process.json")  # atomic, and fails if the name exists
        except FileExistsError:
            owner = self.process() or {}
            raise RunError(f"{self.id} was already started, by process {owner.get('pid')}") from None
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}") from None
        finally:
            draft.unlink(missing_ok=True)

    def requeue(self) -> None:
        """Make a run that has ended startable again; it goes on from its last checkpoint."""
        if self.state().status.living:
            raise RunError(f"{self.id} is running")
        shutil.rmtree(self.ranks_path, ignore_errors=True)
        self.stop_path.unlink(missing_ok=True)
        for torso in self.path.glob(".*.pt.*"):  # what a process that was killed had begun to write
            torso.unlink()
        # In this order: a reader in between must not take the earlier launch for the one at work.
        self.launch_path.unlink(missing_ok=True)
        (self.path / "process.json").unlink(missing_ok=True)

    def prepare_resume(self, epochs: int = 0) -> None:
        """Requeue an ended run, to train to `epochs` epochs in all (0: as many as it has).

        Raises RunError if it is running, ConfigError if `epochs` is not valid or is done already.
        """
        old, state = self.config(), self.state()
        if state.status.living:
            raise RunError(f"{self.id} is running")
        config = old.changed(epochs=epochs if epochs != 0 else old.epochs)
        if config.epochs <= state.epoch:
            raise ConfigError(
                {"epochs": f"{config.epochs} is not more than the {state.epoch:g} that {self.id} has done already"}
            )
        if config != old:
            self.write_config(config)
        self.requeue()

    def ask_to_stop(self) -> None:
        self.stop_path.touch()

    def delete(self) -> None:
        """Remove the directory. Raises RunError while a process is at work in it."""
        if self.state().status.living or any(alive(process) for process in self.rank_identities()):
            raise RunError(f"{self.id} is running: stop it first")
        doomed = self.path.with_name(f".deleted-{self.id}")
        os.rename(self.path, doomed)  # at once out of every list, also if the removal is cut short
        shutil.rmtree(doomed)

    def state(self) -> RunState:
        """All facts, read now. Keep the RunState and `update()` it to read only what is new."""
        state = RunState(self)
        state.update()
        return state


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("torch", "torchvision", "numpy", "pillow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def iter_runs(runs_dir: Path) -> Iterator[Run]:
    """All runs of a directory, newest first. Strangers in it are left alone."""
    try:
        names = sorted((entry.name for entry in os.scandir(runs_dir)), reverse=True)
    except OSError:
        return
    for name in names:
        if RUN_ID.fullmatch(name) and (runs_dir / name / "config.json").exists():
            yield Run(runs_dir / name)


def list_runs(runs_dir: Path) -> list[dict[str, Any]]:
    """The rows of `python -m trainer list`, newest first; a run whose settings cannot be read is left out."""
    rows = []
    for run in iter_runs(runs_dir):
        try:
            rows.append(run.state().summary())
        except ValueError:
            continue
    return rows


def open_run(runs_dir: Path, reference: str) -> Run:
    """The run that an id, a path or `latest` names. Raises RunError."""
    if reference == "latest":
        newest = next(iter_runs(runs_dir), None)
        if newest is None:
            raise RunError(f"there is no run in {runs_dir} yet")
        return newest
    path = runs_dir / reference if RUN_ID.fullmatch(reference) else Path(os.path.abspath(reference))
    if not reference or not os.path.isfile(path / "config.json"):  # Path.is_file raises for a name that is too long
        raise RunError(f"there is no run {reference!r} in {runs_dir}")
    return Run(path)


def event_writer(run: Run) -> EventWriter:
    return EventWriter(run.events_path)
