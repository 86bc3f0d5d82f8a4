"""A run is a directory. Everything about it is read from there. Imports no torch.

    config.json     the settings, written whole before anything starts
    launch.json     when the run was queued, and the trainer that was started for it or waits; counts until the claim
    process.json    pid, kernel start time, argv, devices, versions of what trains; its creation claims the run
    events.jsonl    what happened (trainer.events)
    system.jsonl    CPU, memory and GPUs, each second
    train.log       all output
    ranks/<n>.json  pid, heartbeat, step and error of each rank
    last.pt previous.pt best.pt checkpoints, each with its SHA-256 beside it
    stop            its existence asks the run to stop
    lock            locked by the process that trains the run, or waits to, for as long as it lives

The status is derived from these files and the living processes each time; it is never stored. A run without
process.json is queued: `trainer.queue` says when it may be claimed.
"""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import ConfigError, TrainConfig
from trainer.events import EventWriter
from trainer.files import (
    file_size,
    open_regular,
    remove_folder,
    remove_leftovers,
    remove_stale_folders,
    unlink_from_copies,
    write_atomic,
)
from trainer.processes import Identity, alive, recorded_identity
from trainer.records import LOCK, here, hold, is_held, queue_record, read_rank, read_record, versions
from trainer.status import RunState, RunStatus

__all__ = ["RUN_ID", "Run", "RunError", "RunState", "RunStatus", "event_writer"]

CHECKPOINTS = ("last", "previous", "best")  # in the order in which a resumed run tries them
MAX_CONFIG = 1 << 20  # bytes; what is longer is no config.json
RUN_ID = re.compile(r"\d{8}-\d{6}-(single|dp|ddp)-[0-9a-f]{4}")


_claims: dict[str, str] = {}  # by run directory: what this process has written into process.json


class RunError(ValueError):
    """What was asked of a run cannot be done; the text says why."""


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
    def create(cls, runs_dir: Path, config: TrainConfig, waits_here: bool = False) -> "Run":
        """A new, queued run. With `waits_here` this process is the one that will train it; else any may start it.

        Its pictures are found again from any working directory. Raises RunError if the directory cannot be written.
        """
        config = config.anchored()
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            remove_stale_folders(runs_dir, RUN_ID)
            while True:
                run = cls(runs_dir / _new_id(config.parallel))
                # Prepared under another name: no reader ever meets a run without its config.
                draft = runs_dir / f".{run.id}"
                try:
                    draft.mkdir()
                except FileExistsError:  # somebody makes one at this very moment
                    continue
                (draft / "config.json").write_text(config.model_dump_json(indent=1), "utf-8")
                (draft / "launch.json").write_text(json.dumps(queue_record(draft, waits_here)), "utf-8")
                if not os.path.lexists(run.path):
                    os.rename(draft, run.path)
                    return run
                shutil.rmtree(draft)
        except OSError as error:
            raise RunError(f"the run directory in {runs_dir} cannot be written: {error}") from error

    def config(self) -> TrainConfig:
        """Raises RunError if config.json is missing or not readable, ConfigError if a setting is not valid."""
        try:
            with open_regular(self.path / "config.json") as file:
                return TrainConfig.from_json(file.read(MAX_CONFIG).decode())
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{self.path} is not a run: its config.json cannot be read ({error})") from error

    def write_config(self, config: TrainConfig) -> None:
        write_atomic(self.path / "config.json", config.model_dump_json(indent=1))

    @property
    def launch_path(self) -> Path:
        return self.path / "launch.json"

    @property
    def is_there(self) -> bool:
        """False once its directory was deleted or renamed; one file of it may be away while somebody replaces it."""
        return any(os.path.exists(self.path / name) for name in ("config.json", "launch.json", "process.json"))

    @property
    def has_claim(self) -> bool:
        """Whether a trainer got as far as claiming the run."""
        return os.path.exists(self.path / "process.json")

    @property
    def is_asked_to_stop(self) -> bool:
        return os.path.exists(self.stop_path)

    def launch(self) -> dict[str, Any]:
        """{queued: when, pid and start of the trainer that was started for the run or waits, waiting: true if so}."""
        return read_record(self.launch_path) or {}

    def process(self) -> dict[str, Any] | None:
        """Who has claimed the run; before that, who was started to do so; None if it waits in the queue."""
        if self.has_claim:  # where the file cannot be read any more, the first rank knows better than nobody
            return read_record(self.path / "process.json") or next(iter(self.rank_records()), {"pid": None})
        launch = self.launch()
        return launch if launch.get("pid") is not None and not launch.get("waiting") else None

    @property
    def queued_at(self) -> float:
        """When it took its place in the queue, in Unix seconds."""
        return self.launch().get("queued") or _modified(self.path / "config.json")

    def identity(self) -> Identity | None:
        """Who trains, or trained, this run."""
        return recorded_identity(self.process())

    def is_at_work(self, process: dict[str, Any] | None) -> bool:
        """Whether `process`, as `process()` gave it, lives; it may be one that cannot be seen from here."""
        known = recorded_identity(process)
        return known is not None and (alive(known) or is_held(self.path))

    def rank_records(self) -> list[dict[str, Any]]:
        """What each rank wrote about itself, in the order of the ranks."""
        records = [read_rank(path) for path in self.ranks_path.glob("*.json")]
        return sorted((record for record in records if record), key=lambda record: record["rank"])

    def rank_identities(self) -> list[Identity]:
        """Its ranks, and torchrun's agents over them: an agent that has lost the others would wait for minutes."""
        process = read_record(self.path / "process.json")
        if process is not None and process.get("pid") is None:
            return []  # never claimed by a process, or a copy: these are another run's
        ranks = self.rank_records()
        return [known for known in map(recorded_identity, [*ranks, *(r.get("agent") for r in ranks)]) if known]

    def wait_here(self) -> None:
        """Note that this process waits to train the run, so that nobody else is started for it."""
        write_atomic(self.launch_path, json.dumps({**self.launch(), **here(self.path), "waiting": True}))

    def last_step(self) -> int:
        """The newest step that is known of it: a rank notes its own once a second, an event may be rarer."""
        steps = [record.get("step", 0) for record in self.rank_records()]
        return max([self.state().step.get("step", 0), *steps])

    def claim(self, devices: Sequence[str] = ()) -> None:
        """Make this process the one that trains the run, on `devices` (GPU UUIDs or "cpu"; empty: not known).

        Raises RunError if another one has it. Does not ask whose turn it is: `trainer.queue` does.
        """
        self._claim({**here(self.path), "devices": list(devices)})

    def withdraw(self, status: str, error: str) -> None:
        """End a queued run before any process has trained it. Raises RunError if one has claimed it."""
        self._claim({"pid": None})
        writer = EventWriter(self.events_path)
        writer.write("end", status=status, error=error, rank=None, step=0, cause="exit" if status == "failed" else None)
        writer.close()

    def _claim(self, owner: dict[str, Any]) -> None:
        record = {
            **owner,
            "started": time.time(),
            "argv": sys.argv,
            "events_offset": file_size(self.events_path),  # what lies before it was written by an earlier process
            "versions": versions(),
        }
        text = json.dumps(record, indent=1)
        try:
            if owner["pid"] is not None:
                hold(self.path)
            self._write_claim(text)
            if owner["pid"] is not None:
                hold(self.path)  # a rival that came too late may have had it
                _claims[str(self.path)] = text
        except FileExistsError:
            owner = self.process() or {}
            raise RunError(f"{self.id} was already started, by process {owner.get('pid')}") from None
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror}") from None

    def _write_claim(self, text: str) -> None:
        draft = self.path / f".process.{os.getpid()}"
        try:
            draft.write_text(text, "utf-8")
            os.link(draft, self.path / "process.json")  # atomic, and fails if the name exists
        finally:
            draft.unlink(missing_ok=True)

    def keep_claim(self) -> None:
        """Put the record of this process's claim back if somebody has removed it: the run would count as queued."""
        text = _claims.get(str(self.path))
        if text and self.is_there and not self.has_claim:
            with suppress(OSError):
                self._write_claim(text)

    def requeue(self, waits_here: bool = False) -> None:
        """Put a run that has ended into the queue again; it goes on from its last checkpoint.

        Raises RunError if it has not ended.
        """
        status = self.state().status
        if status.living or status == RunStatus.QUEUED:
            raise RunError(f"{self.id} is {'queued already' if status == RunStatus.QUEUED else 'running'}")
        try:
            self.stop_path.unlink(missing_ok=True)
            # In this order: a reader in between must not take the earlier launch for the one at work.
            write_atomic(self.launch_path, json.dumps(queue_record(self.path, waits_here)))
            (self.path / "process.json").unlink(missing_ok=True)
            (self.path / LOCK).unlink(missing_ok=True)  # its holder has had its say
        except OSError as error:
            raise _not_writable(error) from error
        shutil.rmtree(self.ranks_path, ignore_errors=True)
        remove_leftovers(self.path)
        for name in ("events.jsonl", "system.jsonl", "train.log"):  # which are appended to
            unlink_from_copies(self.path / name)

    def prepare_resume(self, epochs: int = 0, waits_here: bool = False) -> None:
        """Requeue an ended run, to train to `epochs` epochs in all (0: as many as it has).

        Raises RunError if it is running, ConfigError if `epochs` is not valid or is done already.
        """
        old, state = self.config(), self.state()
        if state.status.living or state.status == RunStatus.QUEUED:
            raise RunError(f"{self.id} is {'queued already' if state.status == RunStatus.QUEUED else 'running'}")
        config = old.changed(epochs=epochs if epochs != 0 else old.epochs)
        if not state.can_go_on_to(config.epochs):
            raise ConfigError(
                {"epochs": f"{config.epochs} is not more than the {state.epoch:g} that {self.id} has done already"}
            )
        if config != old:
            try:
                self.write_config(config)
            except OSError as error:
                raise _not_writable(error) from error
        self.requeue(waits_here)

    def ask_to_stop(self) -> None:
        self.stop_path.touch()

    def delete(self) -> None:
        """Remove the directory. Raises RunError while a process is at work in it."""
        if self.state().status.living or any(alive(process) for process in self.rank_identities()):
            raise RunError(f"{self.id} is running: stop it first")
        doomed = self.path.with_name(f".deleted-{self.id}")
        os.rename(self.path, doomed)  # at once out of every list, also if the removal is cut short
        remove_folder(doomed)  # what is left, the next run that is created removes

    def state(self) -> RunState:
        """All facts, read now. Keep the RunState to read only what is new the next time."""
        return RunState(self).read_all()


def _not_writable(error: OSError) -> RunError:
    return RunError(f"{error.filename} cannot be written: {error.strerror}")


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _new_id(mode: str) -> str:
    """The second it is made, the mode, and the part of that second in 65536ths: 20261231-235959-ddp-8000."""
    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{mode}-{int(now % 1 * 0x10000):04x}"


def event_writer(run: Run) -> EventWriter:
    return EventWriter(run.events_path)
