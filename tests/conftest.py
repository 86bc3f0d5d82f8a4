"""Shared by all tests: isolation from the machine, real processes that never outlive a test, one Chromium."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or touches the user's caches, runs or GPU settings."""
    monkeypatch.setenv("PARALLEL_TRAINER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """After all tests no process works in their folders any more."""
    yield
    folder = str(tmp_path_factory.getbasetemp())
    await_true(lambda: not _at_work_in(folder), 20, f"the end of {_at_work_in(folder)}")


def _at_work_in(folder: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            is_ours = process.pid == os.getpid() or "multiprocessing.resource_tracker" in command  # which ends with us
            if not is_ours and folder in f"{command} {process.cwd()}":
                found.append(f"{process.pid} {command}")
    return found


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def await_true(condition: Callable[[], object], seconds: float = 60, what: str = "the condition") -> None:
    """Wait until `condition()` holds; fail, naming `what`, when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds} s"
        time.sleep(0.05)


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def start_process() -> Iterator[Callable[..., subprocess.Popen]]:
    """Start programs in sessions of their own; whatever they leave behind is killed, by pid, after the test."""
    started: list[tuple[subprocess.Popen, dict[int, psutil.Process]]] = []

    def start(*argv: str, **options) -> subprocess.Popen:
        options = {"cwd": ROOT, "start_new_session": True, "text": True, **options}
        process = subprocess.Popen([str(part) for part in argv], **options)
        started.append((process, {}))
        return process

    yield start
    for process, _ in started:
        family: list[psutil.Process] = []
        with suppress(psutil.Error):
            root = psutil.Process(process.pid)
            family = [root, *root.children(recursive=True)]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        for member in family:
            with suppress(psutil.Error):
                member.kill()
        process.wait(10)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


@pytest.fixture
def actor(start_process) -> Callable:
    """Start a process that says these words (tests/programs/actor.py) about a run; with `leave`, wait for its end."""

    def act(run, *words: str, leave: bool = False) -> subprocess.Popen:
        program = ROOT / "tests" / "programs" / "actor.py"
        pipe = subprocess.PIPE
        process = start_process(sys.executable, program, run.path, *words, stdin=pipe, stdout=pipe)
        assert process.stdout.readline() == "ready\n"
        if leave:
            process.stdin.close()
            assert process.wait(30) == 0
        return process

    return act


@pytest.fixture
def trainer(start_process) -> Callable[..., subprocess.CompletedProcess]:
    """Run `python -m trainer ...` to its end and return what it said."""

    def run(*argv: str, timeout: float = 150) -> subprocess.CompletedProcess:
        process = start_process(sys.executable, "-m", "trainer", *argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    """One headless Chromium. Without one browser tests are skipped, in CI they fail."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium) -> Iterator:
    """A fresh browser profile with one page of 1280x800."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()
