"""Starting trainers in the background for the runs whose turn it is. Imports no torch.

Called by the page when somebody presses Start and then each second, and by each trainer when it ends: so the queue
goes on also when no page is open. A trainer is a session of its own that outlives whoever started it. `launch.json`
says who was started, so a trainer that dies before it could write anything is seen as dead, by anyone.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.causes import DISK_ERRORS
from trainer.config import ConfigError
from trainer.files import file_size, open_regular, open_to_append, read_json, write_atomic
from trainer.placement import Placement
from trainer.processes import identity
from trainer.queue import has_trainer, locked, turns, waiting_runs
from trainer.records import directory_key
from trainer.runs import Run, RunError, RunStatus

ROOT = Path(__file__).resolve().parent.parent
TRAINER = (sys.executable, "-m", "trainer")

# What a trainer has no use for: secrets of the user, settings of the page, and another torchrun's group.
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


def start_waiting(
    runs_dir: Path,
    trainer: Sequence[str] = TRAINER,
    environment: Mapping[str, str] | None = None,
    leaving: Run | None = None,
) -> None:
    """Start a trainer for each queued run whose devices are free and that has none yet.

    `leaving` is a run whose process, this one, is about to end: its devices count as free. What cannot be started
    becomes a failed run that says why. Raises RunError if the runs directory cannot be written.
    """
    if not waiting_runs(runs_dir):  # nearly always: no need to keep others waiting for the lock
        return
    with locked(runs_dir):
        for run, turn in turns(runs_dir, leaving=leaving):
            if has_trainer(run):
                continue
            if isinstance(turn, ConfigError):
                _fail(run, f"This machine cannot train it as it is set up: {turn}")
            elif isinstance(turn, Placement):
                _start(run, tuple(trainer), environment or trainer_environment())


def _start(run: Run, trainer: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Under the lock: the trainer cannot claim the run before it is noted who it is."""
    log_offset = file_size(run.log_path)
    record: dict[str, Any] = {
        "queued": run.queued_at,
        "directory": directory_key(run.path),
        "started": time.time(),
        "events_offset": file_size(run.events_path),
    }
    try:
        write_atomic(run.launch_path, json.dumps(record))  # fails on a full disk while there is nothing to clean up
        with os.fdopen(open_to_append(run.log_path), "ab") as log:
            process = subprocess.Popen(
                [*trainer, "train", "--run", os.path.abspath(run.path)],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        if error.errno in DISK_ERRORS:  # it stays in the queue until there is room
            raise RunError(f"{run.path} cannot be written: {error.strerror}") from error
        _fail(run, f"The trainer could not be started: {error.strerror}: {error.filename}")
        return
    # A process that is gone already has no start time, and no process ever has an empty one.
    record["pid"], record["start"] = identity(process.pid) or (process.pid, "")
    try:
        write_atomic(run.launch_path, json.dumps(record))
    except OSError as error:  # nobody would know of it, and another would be started
        process.kill()
        process.wait()
        raise RunError(f"{run.path} cannot be written: {error.strerror}") from error
    threading.Thread(target=_reap, args=(run, process, log_offset), name=f"reap {run.id}", daemon=True).start()


def _reap(run: Run, process: subprocess.Popen, log_offset: int) -> None:
    """Take the exit code, so that no zombie stays, and speak for a trainer that died without a word."""
    code = process.wait()
    with contextlib.suppress(RunError, OSError), locked(run.path.parent):
        launched = read_json(run.launch_path)
        if launched is None or launched.get("pid") != process.pid or run.has_claim or run.is_asked_to_stop:
            return  # deleted, started anew, or it has spoken itself
        if run.state().status == RunStatus.INTERRUPTED:
            reason = last_line(run.log_path, log_offset) or f"exit code {code}"
            _fail(run, f"The trainer did not start: {reason}")


def _fail(run: Run, error: str) -> None:
    with contextlib.suppress(RunError):  # claimed meanwhile, or it cannot be written: seen as interrupted
        run.withdraw("failed", error)


def last_line(path: Path, offset: int = 0) -> str:
    """The last line with something in it that was written after `offset`; "" if there is none."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(offset, size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
