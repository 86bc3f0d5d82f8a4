"""Where a scenario is played: runs, real trainers with or without sabotage, and a full account of their processes."""

import functools
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from tests.conftest import ROOT, await_true
from tests.page import Server, serve
from trainer.config import TrainConfig
from trainer.event_reader import read_events
from trainer.processes import Identity, alive, identity, wait_gone
from trainer.run_list import iter_runs
from trainer.runs import Run

SABOTAGE = Path(__file__).parent / "sabotage"
MARK = "FAULT_STAGE"  # in the environment of everything that a stage starts, and so of all that those start
STEP = "at=trainer.ranks:RankRecord.beat"
JOINING = "at=torch.distributed:init_process_group"
EVALUATING = "at=trainer.ranks:RankRecord.beat phase=EVALUATING"
SAVING = "at=trainer.checkpoint:_install"  # the file is written and not yet in place
PREPARING = "at=trainer.datasets.prepare:prepare"
IMPORTING = "at=torch"
DDP = {"parallel": "ddp", "processes": 2}
LONG = {"epochs": 1000}  # ends only when it is made to
SMALL = {
    "dataset": "images",
    "devices": "cpu",
    "epochs": 2,
    "batch_size": 12,
    "lr": 0.05,
    "augment": "crop_flip_cutout",
    "log_every": 1,
    "seed": 3,
    "precision": "fp32",
}
# What the shell of whoever runs the table may hold and a trainer would listen to.
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


@functools.cache
def shared_folder() -> Path:
    """Pictures and prepared data that all scenarios of this process may use and none may change."""
    holder = tempfile.TemporaryDirectory(prefix="faults-shared-")
    shared_folder_holders.append(holder)
    Path(holder.name).chmod(0o755)
    draw_pictures(Path(holder.name) / "pictures", 72, 24)
    return Path(holder.name)


shared_folder_holders: list[tempfile.TemporaryDirectory] = []  # removed when this process ends


def draw_pictures(folder: Path, num_train: int, num_test: int) -> None:
    """Pictures of three classes that a network can tell apart."""
    draw = np.random.default_rng(0)
    for part, count in (("train", num_train), ("test", num_test)):
        for index in range(count):
            place = folder / part / "abc"[index % 3]
            place.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            pixels[:, :, index % 3] |= 128
            Image.fromarray(pixels).save(place / f"{index:03}.png")


class Stage:
    """One scenario's directory and processes. `close()` kills, by pid, everything that was started here."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.runs_dir = directory / "runs"
        self.pictures = shared_folder() / "pictures"
        self.cache = shared_folder() / "cache"
        self.mark = secrets.token_hex(8)
        self.exits = ExitStack()  # mounts, servers, sockets: undone in the reverse order
        self._processes: list[subprocess.Popen] = []
        self._known: set[Identity] = set()

    def environment(self, sabotage: str = "", **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in FOREIGN and "proxy" not in k.lower()}
        return {
            **kept,
            "PYTHONPATH": f"{SABOTAGE}{os.pathsep}{ROOT}" if sabotage else str(ROOT),
            "SABOTAGE": sabotage,
            "PARALLEL_TRAINER_CACHE": str(self.cache),
            MARK: self.mark,
            **more,
        }

    def new_run(self, *kinds: dict[str, Any], **settings: Any) -> Run:
        values: dict[str, Any] = {**SMALL, "data_dir": str(self.pictures)}
        for kind in (*kinds, settings):
            values |= kind
        return Run.create(self.runs_dir, TrainConfig.parse(values))

    def program(
        self, *argv: object, sabotage: str = "", env: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen:
        """Start a program in a session of its own."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        options = {**quiet, "cwd": ROOT, "start_new_session": True, **options}
        environment = self.environment(sabotage, **(env or {}))
        process = subprocess.Popen([str(part) for part in argv], env=environment, **options)
        self._processes.append(process)
        return process

    def train(self, run: Run, sabotage: str = "", prefix: tuple[object, ...] = (), **options: Any) -> subprocess.Popen:
        """`python -m trainer train --run RUN`, behind a prefix that must exec it."""
        argv = (*prefix, sys.executable, "-m", "trainer", "train", "--run", run.path)
        return self.program(*argv, sabotage=sabotage, **options)

    def trainer(self, *argv: object, timeout: float = 90, **options: Any) -> subprocess.CompletedProcess:
        """Run `python -m trainer ...` to its end and return what it said."""
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = self.program(sys.executable, "-m", "trainer", *argv, **{**pipe, **options})
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def serve(self, *argv: str) -> Server:
        """A real server of the page, ended with the stage."""
        marked = {MARK: self.mark, "PARALLEL_TRAINER_CACHE": str(self.cache), "PYTHONPATH": str(ROOT)}
        return self.exits.enter_context(serve(self.directory, *argv, **marked))

    def mount(self, name: str, options: str) -> Path:
        """A file system in memory, undone with the stage."""
        place = self.directory / name
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
        self.exits.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
        return place

    def at_step(self, run: Run, step: int = 3, seconds: float = 90) -> None:
        """Wait until the run has made that step."""

        def there() -> bool:
            ended = [event for event in events(run, "end") if event.get("status")]
            assert not ended, f"the run ended before step {step}: {ended[-1].get('error') or ended[-1]}"
            return any(event["step"] >= step for event in events(run, "step"))

        await_true(there, seconds, f"step {step}")

    def ranks(self, run: Run, count: int, seconds: float = 60) -> list[Identity]:
        """The processes of the ranks, once so many have written who they are."""
        await_true(lambda: len(run.rank_identities()) >= count, seconds, f"{count} ranks")
        return run.rank_identities()

    def members(self) -> list[Identity]:
        """Every living process that descends from this stage, whoever its parent is now."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.mark:
                    known = identity(process.pid)
                    if known:
                        found.add(known)
        self._known |= found
        for run in iter_runs(self.runs_dir):
            recorded = [run.identity(), *run.rank_identities()]
            self._known |= {known for known in recorded if known and known[0] != os.getpid() and self._mine(known)}
        return [known for known in self._known if alive(known)]

    def _mine(self, known: Identity) -> bool:
        """A scenario may write a stranger's pid into a record; that one is not ours to count or to kill."""
        try:
            return psutil.Process(known[0]).environ().get(MARK) == self.mark
        except (psutil.Error, OSError):
            return False

    def gone(self, seconds: float) -> float:
        """Assert that no process is left within `seconds`; returns how long it took."""
        began = time.monotonic()
        left = wait_gone(self.members(), seconds) and self.members()
        assert not left, f"after {seconds:g} s there still are {', '.join(self.describe(left))}"
        return time.monotonic() - began

    def left(self, grace: float = 5) -> list[Identity]:
        """What is still there but servers, after a moment for those that are on their way out."""
        servers = {process.pid for process in self._servers()}
        return wait_gone([known for known in self.members() if known[0] not in servers], grace)

    def _servers(self) -> list[psutil.Process]:
        found = []
        for known in self.members():
            with suppress(psutil.Error):
                process = psutil.Process(known[0])
                if any(part.endswith("app.py") for part in process.cmdline()):
                    found.append(process)
        return found

    def describe(self, processes: list[Identity]) -> list[str]:
        texts = []
        for pid, _ in processes:
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                texts.append(f"{pid} {process.status()} {' '.join(process.cmdline())[-60:]}")
        return texts

    def close(self) -> None:
        for _ in range(3):  # what is killed may have started another in between
            for known in self.members():
                with suppress(ProcessLookupError):
                    os.kill(known[0], signal.SIGKILL)
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
        for process in self._processes:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        self.exits.close()


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run.events_path) if event["kind"] == kind]


def end_of(run: Run) -> dict[str, Any]:
    """The last `end` event; {} if there is none."""
    found = events(run, "end")
    return found[-1] if found else {}


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
