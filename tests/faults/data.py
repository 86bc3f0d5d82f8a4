"""Data that are absent, damaged, out of reach, or change under a run."""

import http.server
import shutil
import threading
import time
from pathlib import Path
from subprocess import PIPE

from tests.conftest import await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.disk import NOBODY
from tests.faults.stage import DDP, LONG, Stage, draw_pictures, in_background
from trainer.datasets.cifar10 import ARCHIVE


def own_cache(stage: Stage) -> Path:
    stage.cache = stage.directory / "cache"
    return stage.cache


def own_pictures(stage: Stage, num_train: int = 72) -> Path:
    stage.pictures = stage.directory / "pictures"
    draw_pictures(stage.pictures, num_train, 24)
    return stage.pictures


def cifar10(stage: Stage, *words: str, proxy: str = "http://127.0.0.1:9", within: float = 40, **kind) -> str:
    """A run on CIFAR-10 fails in one sentence with these words and no rank was ever started."""
    own_cache(stage)
    folder = stage.directory / "data"
    run = stage.new_run(kind, dataset="cifar10", data_dir=str(folder))
    began = time.monotonic()
    process = stage.train(run, env={"https_proxy": proxy})
    seen = expect.failed(stage, run, process, *words, cause="data")
    assert time.monotonic() - began < within, f"told only after {time.monotonic() - began:.0f} s"
    assert not run.rank_records(), "a rank was started without data"
    assert not list(folder.glob(".*")), f"left in the data folder: {[path.name for path in folder.glob('.*')]}"
    return seen


@fault(
    "CIFAR-10 is not there and the network is not either", "failed in a sentence with what to do; no rank", quick=True
)
def offline(stage: Stage) -> str:
    return cifar10(stage, "CIFAR-10", str(stage.directory / "data"), "shapes", **DDP)


class Tarpit(http.server.BaseHTTPRequestHandler):
    """A proxy that takes the connection and says nothing more."""

    over = threading.Event()

    def do_CONNECT(self) -> None:
        self.over.wait(120)

    def log_message(self, *_: object) -> None:
        pass


@fault("the proxy takes the connection and never answers", "failed in a sentence in 40 s; no rank")
def server_is_silent(stage: Stage) -> str:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tarpit)
    server.daemon_threads = True
    in_background(server.serve_forever)
    try:
        return cifar10(stage, "CIFAR-10", proxy=f"http://127.0.0.1:{server.server_port}")
    finally:
        Tarpit.over.set()
        server.shutdown()
        server.server_close()


@fault("the archive of CIFAR-10 is damaged", "failed with its path and both md5 sums; it is not touched")
def archive_damaged(stage: Stage) -> str:
    folder = stage.directory / "data"
    folder.mkdir()
    (folder / ARCHIVE).write_bytes(b"no archive")
    seen = cifar10(stage, ARCHIVE, "md5", "c58f30108f718f92721af3b95e74349a")
    assert (folder / ARCHIVE).read_bytes() == b"no archive"
    return seen


@fault(
    "the data folder cannot be written", "failed in a sentence with its path before anything is downloaded", root=True
)
def data_folder_read_only(stage: Stage) -> str:
    folder = stage.directory / "data"
    folder.mkdir()
    run = stage.new_run(dataset="cifar10", data_dir=str(folder))
    for path in (stage.runs_dir, run.path, *run.path.iterdir()):
        path.chmod(0o777)
    cache = stage.directory / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    env = {"PARALLEL_TRAINER_CACHE": str(cache), "HOME": "/nonexistent", "https_proxy": "http://127.0.0.1:9"}
    return expect.failed(stage, run, stage.train(run, prefix=NOBODY, env=env), str(folder), "written", cause="data")


@fault(
    "the folder for prepared data cannot be written", "failed in a sentence that names it, or done without", root=True
)
def cache_read_only(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    for path in (stage.runs_dir, run.path, *run.path.iterdir()):
        path.chmod(0o777)
    (stage.directory / "cache").mkdir()
    env = {"PARALLEL_TRAINER_CACHE": str(stage.directory / "cache"), "HOME": "/nonexistent"}
    process = stage.train(run, prefix=NOBODY, env=env, stderr=PIPE, text=True)
    said = process.communicate(timeout=90)[1]
    assert "Traceback" not in said, said[-300:]
    assert run.state().status in ("failed", "completed"), run.state().status
    assert run.state().status == "completed" or "cache" in run.state().error, run.state().error
    return f"{run.state().status}: {run.state().error}"


@fault(
    "three runs in three runs directories need the same data that nobody has prepared", "prepared once; all complete"
)
def cold_cache_for_three(stage: Stage) -> str:
    cache = own_cache(stage)
    runs, processes = [], []
    for number in range(3):
        stage.runs_dir = stage.directory / f"runs-{number}"
        runs.append(stage.new_run({"dataset": "shapes", "batch_size": 128}, epochs=1, max_steps=2))
        processes.append(stage.train(runs[-1]))
    for run, process in zip(runs, processes, strict=True):
        end = expect.told(run, process, 200)
        assert end["status"] == "completed", end
    drawn = sum("Drawing" in run.events_path.read_text() for run in runs)
    assert drawn == 1, f"prepared {drawn} times"
    assert not list(cache.glob(".*")), list(cache.glob(".*"))
    return "prepared once, three completed"


@fault(
    "the process that prepares the data is killed; a second run needs the same", "the second prepares anew; no torso"
)
def killed_while_preparing(stage: Stage) -> str:
    cache = own_cache(stage)
    first = stage.new_run({"dataset": "shapes"}, epochs=1, max_steps=2)
    process = stage.train(first, "at=trainer.datasets.shapes:_draw call=4 do=kill:SIGKILL")
    process.wait(expect.START_UP)
    second = stage.new_run({"dataset": "shapes"}, epochs=1, max_steps=2)
    seen = expect.completed(stage, second, stage.train(second))
    assert not list(cache.glob(".*")), list(cache.glob(".*"))
    return seen


@fault("a file of the prepared data was cut short (a full disk, a crash)", "prepared anew, or failed naming it")
def prepared_data_cut(stage: Stage) -> str:
    cache = own_cache(stage)
    first = stage.new_run(epochs=1)
    expect.completed(stage, first, stage.train(first))
    for path in cache.rglob("train_images.npy"):
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
    second = stage.new_run(DDP, epochs=1)
    process = stage.train(second)
    end = expect.told(second, process)
    assert end["status"] == "completed" or str(cache) in str(end["error"]), end
    stage.gone(5)
    return f"{end['status']}: {end['error'] or 'in spite of it'}"


@fault("the prepared data are removed while a ddp run starts its ranks and trains", "it goes on: data live in memory")
def prepared_data_removed(stage: Stage) -> str:
    cache = own_cache(stage)
    run = stage.new_run(DDP, LONG)
    stage.train(run)
    stage.at_step(run)
    shutil.rmtree(cache)
    seen = expect.goes_on(stage, run, 20)
    stage.trainer("stop", run.path)
    return seen


@fault("a picture is not one: a text file with the name of a PNG", "told in words with its name; never a traceback")
def picture_damaged(stage: Stage) -> str:
    own_cache(stage)
    bad = next((own_pictures(stage) / "train").rglob("*.png"))
    bad.write_text("not a picture")
    run = stage.new_run(epochs=1)
    process = stage.train(run, stderr=PIPE, text=True)
    said = process.communicate(timeout=90)[1]
    texts = run.events_path.read_text()
    assert bad.name in texts, texts[-400:]
    assert "Traceback" not in said, said[-300:]
    return f"{run.state().status}: {run.state().error or run.state().warnings}"


@fault("pictures are added between a stop and its resume", "refused in words or the settings of old; never mixed")
def pictures_added(stage: Stage) -> str:
    own_cache(stage)
    own_pictures(stage)
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    draw_pictures(stage.pictures, 144, 24)
    done = stage.trainer("resume", run.path, "--epochs", 2)
    assert done.returncode == 1, f"exit code {done.returncode}: went on with other data"
    error = run.state().error
    assert "pictures" in error, error
    return error


@fault("the pictures are a FIFO that nobody writes to", "told in words or refused; never stuck; Stop works in 10 s")
def pictures_are_a_fifo(stage: Stage) -> str:
    import os

    own_cache(stage)
    os.mkfifo(own_pictures(stage) / "train" / "a" / "zzz.png")
    run = stage.new_run(epochs=1)
    process = stage.train(run)
    await_true(lambda: run.has_claim, 60, "the claim")
    try:
        process.wait(25)
    except Exception:
        began = time.monotonic()
        stage.trainer("stop", run.path)
        raise AssertionError(f"stuck; {expect.stopped(stage, run, began, 13)}") from None
    stage.gone(5)
    return f"{run.state().status}: {run.state().error or run.state().warnings}"


@fault("a worker process of the data loader is killed", "-", not_here="data live in memory: there are no such workers")
def loader_worker_killed(stage: Stage) -> str:
    raise NotImplementedError
