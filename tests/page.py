"""A real server of the page for tests: a process on a free port, ended with everything that it started."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.conftest import ROOT, await_true
from trainer.processes import alive
from trainer.queue import cancel
from trainer.run_list import iter_runs
from trainer.runs import RunError


class Server:
    """`url`, the runs directory, and what the process has printed."""

    def __init__(self, process: subprocess.Popen, runs_dir: Path):
        self.process = process
        self.runs_dir = runs_dir
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as out:
            self.lines.extend(line.rstrip() for line in out)

    def wait(self, seconds: float = 30) -> int:
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code

    @property
    def url(self) -> str:
        def found() -> list[str]:
            return [line for line in list(self.lines) if "http://" in line]

        await_true(lambda: found() or self.process.poll() is not None, 90, "the address of the page")
        assert found(), self.lines
        return found()[0].split(": ", 1)[1]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@contextmanager
def serve(directory: Path, *argv: str, **environment: str) -> Iterator[Server]:
    """`python app.py --port 0` with runs and data below `directory`, and CIFAR-10 out of reach."""
    runs_dir = directory / "runs"
    env = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "PARALLEL_TRAINER_CACHE": str(directory / "cache"),
        "GRADIO_TEMP_DIR": str(directory / "uploads"),
        "https_proxy": "http://127.0.0.1:9",
        "no_proxy": "127.0.0.1,localhost",
        **environment,
    }
    arguments = ["--port", "0", "--runs-dir", runs_dir, "--data-dir", directory / "data", *argv]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "app.py"), *map(str, arguments)],
        env=env,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    server = Server(process, runs_dir)
    try:
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                server.wait()
        end_runs(runs_dir)


def end_runs(runs_dir: Path) -> None:
    """Take what waits in a runs directory out of its queue, and kill, by pid, what still trains there."""
    await_true(lambda: not _end_some(runs_dir), 20, "the end of all runs")


def _end_some(runs_dir: Path) -> bool:
    """Whether there were any; while the last ends, another may begin."""
    runs = list(iter_runs(runs_dir))
    for run in runs:
        with suppress(RunError):  # claimed meanwhile
            cancel(run)
    living = [known for run in runs if (known := run.identity()) and known[0] != os.getpid() and alive(known)]
    for pid, _ in living:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            family = [*root.children(recursive=True), root]
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
            psutil.wait_procs(family, 10)
    return bool(living)
