"""Starting, stopping and resuming runs: facts about processes only. Imports no gradio and no torch.

A run belongs to its directory. A trainer is a session of its own that outlives this server; after a restart it is
found again by the directory, as is one that a shell started. `launch.json` says who was launched, so a trainer that
dies before it could write anything is seen as dead, also when this server is gone by then.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.config import TrainConfig
from trainer.devices import cpu_cores, cpu_has_bf16, list_gpus
from trainer.events import EventWriter
from trainer.placement import Placement, place
from trainer.processes import alive, identity
from trainer.runs import RUN_ID, Run, RunError, RunStatus, iter_runs, read_json, write_atomic

try:
    import fcntl
except ImportError:  # Windows: one server for each runs directory is then up to the user
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parent.parent

# What the trainer has no use for: secrets of the user, settings of this server, and another torchrun's group.
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "APIKEY", "PRIVATE_KEY")
_DROPPED_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "GRADIO_", "WANDB_", "TORCHELASTIC_", "PARALLEL_TRAINER_AUTH")
_DROPPED = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}


def trainer_environment() -> dict[str, str]:
    """This process's environment without what a trainer must not see."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED
        and not name.startswith(_DROPPED_PREFIXES)
        and not any(word in name.upper() for word in _SECRET_WORDS)
    }
    return {**kept, "PYTHONUNBUFFERED": "1"}


def placement(config: TrainConfig) -> Placement:
    """Where `config` would run on this machine now. Raises ConfigError."""
    return place(config, list_gpus(), cpu_cores(), cpu_has_bf16())


class Supervisor:
    """Launches trainers for one runs directory; at most one at a time, over all servers that share it."""

    def __init__(self, runs_dir: Path, trainer: Sequence[str] = (sys.executable, "-m", "trainer")):
        self.runs_dir = runs_dir.resolve()
        self._trainer = tuple(trainer)
        self._thread_lock = threading.Lock()
        self._stopping: set[str] = set()

    def run(self, run_id: object) -> Run:
        """The run of an id, which may come from anywhere. Raises RunError."""
        if isinstance(run_id, str) and RUN_ID.fullmatch(run_id):
            run = Run(self.runs_dir / run_id)
            if (run.path / "config.json").is_file():
                return run
        raise RunError(f"there is no run {str(run_id)[:64]!r} here")

    def living(self) -> Run | None:
        """The newest run with a process at work, whoever started it."""
        for run in iter_runs(self.runs_dir):
            known = run.identity()  # first the cheap question: most runs ended long ago
            if known and alive(known) and run.state().status.living:
                return run
        return None

    def start(self, config: TrainConfig) -> Run:
        """Launch a trainer for a new run. Raises ConfigError, or RunError while another run is training."""
        placement(config)
        with self._lock():
            self._refuse_if_living()
            run = Run.create(self.runs_dir, config)
            self._launch(run)
        return run

    def resume(self, run_id: object, epochs: int) -> Run:
        """Train a run that has ended on to `epochs` epochs in all. Raises ConfigError or RunError."""
        run = self.run(run_id)
        with self._lock():
            self._refuse_if_living()
            placement(run.config().changed(epochs=epochs))
            run.prepare_resume(epochs)
            self._launch(run)
        return run

    def stop(self, run_id: object) -> Run:
        """Ask a run to stop and see to it in the background that it does. Raises RunError if it is not training."""
        run = self.run(run_id)
        status = run.state().status
        if not status.living:
            raise RunError(f"{run.id} is not training: it is {status}")
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
            stop_run(run)
        finally:
            with self._thread_lock:
                self._stopping.discard(run.id)

    def _refuse_if_living(self) -> None:
        other = self.living()
        if other is not None:
            raise RunError(f"{other.id} is training on this machine: stop it first, or wait until it has ended")

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One at a time, over the threads of this server and over all servers of this runs directory."""
        with self._thread_lock:
            try:
                self.runs_dir.mkdir(parents=True, exist_ok=True)
                file = (self.runs_dir / ".lock").open("w")
            except OSError as error:
                raise RunError(f"the runs directory {self.runs_dir} cannot be written: {error.strerror}") from error
            with file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
                yield

    def _launch(self, run: Run) -> None:
        events_offset = run.events_path.stat().st_size if run.events_path.exists() else 0
        log_offset = run.log_path.stat().st_size if run.log_path.exists() else 0
        record = {"pid": 0, "start": "", "started": time.time(), "events_offset": events_offset}
        try:
            with run.log_path.open("ab") as log:
                process = subprocess.Popen(
                    [*self._trainer, "train", "--run", str(run.path)],
                    cwd=ROOT,
                    env=trainer_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            write_atomic(run.launch_path, json.dumps(record))
            _write_end(run, f"The trainer could not be started: {error}")
            raise RunError(f"the trainer could not be started: {error}") from error
        # A process that is gone already has no start time, and no process ever has an empty one.
        record["pid"], record["start"] = identity(process.pid) or (process.pid, "")
        write_atomic(run.launch_path, json.dumps(record))
        threading.Thread(target=self._reap, args=(run, process, log_offset), name=f"reap {run.id}", daemon=True).start()

    def _reap(self, run: Run, process: subprocess.Popen, log_offset: int) -> None:
        """Take the exit code, so that no zombie stays, and speak for a trainer that died without a word."""
        code = process.wait()
        with contextlib.suppress(RunError), self._lock():
            launched = read_json(run.launch_path)
            if launched is None or launched.get("pid") != process.pid:
                return  # deleted, or launched anew
            if run.has_claim or run.stop_path.exists() or run.state().status != RunStatus.INTERRUPTED:
                return
            reason = last_line(run.log_path, log_offset) or f"exit code {code}"
            _write_end(run, f"The trainer did not start: {reason}")


def last_line(path: Path, offset: int = 0) -> str:
    """The last line with something in it that was written after `offset`; "" if there is none."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(offset, size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _write_end(run: Run, error: str) -> None:
    writer = EventWriter(run.events_path)
    writer.write("end", status=str(RunStatus.FAILED), error=error, rank=None, step=0)
    writer.close()
