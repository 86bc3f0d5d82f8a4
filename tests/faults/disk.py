"""Disks that fill up, and files of a run that others move, remove or spoil while it trains."""

import os
import shutil
import sys
import time
from pathlib import Path

from tests.conftest import await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import DDP, LONG, Stage, end_of, in_background
from trainer.files import read_json
from trainer.runs import Run

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def on_small_disk(stage: Stage, options: str, **settings) -> Run:
    stage.runs_dir = stage.mount("small", options) / "runs"
    return stage.new_run(settings)


def fill(folder: Path) -> None:
    """Take all the room that is left."""
    try:
        with (folder / "filler").open("ab") as file:
            while True:
                file.write(b"\0" * 4096)
                file.flush()
    except OSError:
        return


@fault("room for one checkpoint only", "completed, a warning, the first checkpoint loads, no temporary file", root=True)
def disk_full_while_saving(stage: Stage) -> str:
    run = on_small_disk(stage, "size=100m", epochs=3)
    seen = expect.completed(stage, run, stage.train(run))
    text = expect.warned(run, "space")
    from trainer import checkpoint

    checkpoint.load(run.checkpoint_path("last"))
    return f"{seen}; {text}"


@fault("no room for any checkpoint", "completed, with a warning; no temporary file", root=True)
def disk_too_small_to_save(stage: Stage) -> str:
    run = on_small_disk(stage, "size=20m", epochs=2)
    return f"{expect.completed(stage, run, stage.train(run))}; {expect.warned(run, 'space')}"


@fault("the disk fills up to the last byte in mid-run and stays full", "training goes on; `end` is written", root=True)
def disk_full_for_good(stage: Stage) -> str:
    run = on_small_disk(stage, "size=200m", epochs=6)
    process = stage.train(run)
    stage.at_step(run)

    def keep_full() -> None:
        while process.poll() is None:
            fill(run.path.parent)
            time.sleep(0.02)

    in_background(keep_full)
    return expect.completed(stage, run, process, torn=True)


@fault("the disk is full for a while", "completed; the steps after it are logged; strict JSON", root=True)
def disk_full_for_a_while(stage: Stage) -> str:
    run = on_small_disk(stage, "size=250m", epochs=12)
    process = stage.train(run)
    stage.at_step(run)
    fill(run.path.parent)
    time.sleep(1.5)
    (run.path.parent / "filler").unlink()
    return expect.completed(stage, run, process, torn=True)


@fault(
    "the disk runs out of inodes: no new file can be made", "completed, with a warning; no temporary file", root=True
)
def no_inodes_left(stage: Stage) -> str:
    run = on_small_disk(stage, "size=500m,nr_inodes=40", epochs=4)
    process = stage.train(run)
    stage.at_step(run)
    made = 0
    try:
        for made in range(100):
            (run.path.parent / f"filler-{made}").touch()
    except OSError:
        pass
    seen = expect.completed(stage, run, process)
    return f"{seen}; {made} files took the rest; {expect.warned(run, 'could not be written')}"


@fault("no file may grow beyond 1 MB (a quota)", "completed, with a warning; no temporary file; 0 left", quick=True)
def file_size_limit(stage: Stage) -> str:
    run = stage.new_run(epochs=2)
    seen = expect.completed(stage, run, stage.train(run, prefix=("prlimit", "--fsize=1000000")))
    return f"{seen}; {expect.warned(run, 'could not be written')}"


@fault("the run directory loses its write permission in mid-run", "completed, with a warning", root=True)
def run_directory_read_only(stage: Stage) -> str:
    run = stage.new_run(epochs=6)
    for path in (stage.directory, stage.runs_dir, run.path, *run.path.iterdir()):
        os.chown(path, 65534, 65534)
    cache = stage.directory / "cache"
    process = stage.train(run, prefix=NOBODY, env={"PARALLEL_TRAINER_CACHE": str(cache), "HOME": str(stage.directory)})
    stage.at_step(run)
    run.path.chmod(0o555)
    process.wait(90)
    (run.path / ".reserve").unlink()  # in such a directory nobody but root can remove it; the next start would
    return f"{expect.completed(stage, run, process)}; {expect.warned(run, 'could not be written')}"


@fault("the runs directory cannot be written", "refused with exit code 2 and its name, in one line", root=True)
def runs_directory_read_only(stage: Stage) -> str:
    stage.runs_dir.mkdir()
    argv = (*NOBODY, sys.executable, "-m", "trainer", "train", "--preset", "smoke", "--runs-dir", stage.runs_dir)
    from subprocess import PIPE

    process = stage.program(*argv, stderr=PIPE, text=True, env={"PARALLEL_TRAINER_CACHE": str(stage.directory)})
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2, f"exit code {process.returncode}: {said[-300:]}"
    assert len(said.strip().splitlines()) == 1, said[-300:]
    assert str(stage.runs_dir) in said, said
    return said.strip()


@fault("the run directory is renamed while it trains", "Stop under its new name ends it in 10 s; 0 left")
def run_directory_renamed(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    stage.train(run)
    stage.at_step(run)
    moved = Run(run.path.with_name("20200101-000000-ddp-abcd"))
    run.path.rename(moved.path)
    time.sleep(1)
    began = time.monotonic()
    done = stage.trainer("stop", moved.path)
    assert done.returncode == 0, done.stderr
    return expect.stopped(stage, moved, began, 13)


@fault("the run directory is removed while it trains (rm -r)", "the run notices and ends by itself in 30 s; 0 left")
def run_directory_removed(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run)
    stage.at_step(run)
    shutil.rmtree(run.path)
    took = stage.gone(30)
    process.wait(5)
    assert not run.path.exists(), f"it was made anew, with {[path.name for path in run.path.iterdir()]}"
    return f"gone in {took:.1f} s, exit code {process.returncode}"


@fault("process.json is torn (the machine lost power while it was written)", "not queued, not living; resume works")
def process_record_torn(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    path = run.path / "process.json"
    path.write_text(path.read_text()[:40])
    status = run.state().status
    assert status == "completed", f"shown as {status}"
    done = stage.trainer("resume", run.path, "--epochs", 2)
    assert done.returncode == 0, done.stderr
    return f"{status}; resumed to {run.state().status}"


@fault("process.json names a pid that another program has now", "interrupted; Stop does not touch that program")
def pid_reused(stage: Stage) -> str:
    run = stage.new_run(LONG)
    process = stage.train(run)
    stage.at_step(run)
    process.kill()
    process.wait(5)
    stranger = stage.program("sleep", "1000")
    path = run.path / "process.json"
    record = read_json(path)
    assert record
    path.write_text(path.read_text().replace(f'"pid": {record["pid"]}', f'"pid": {stranger.pid}'))
    assert run.state().status == "interrupted", run.state().status
    stage.trainer("stop", run.path)
    assert stranger.poll() is None, "the stranger was ended"
    stranger.kill()
    return "interrupted; the stranger lives"


@fault("process.json is removed while the run trains", "the run is not started a second time; it can be stopped")
def process_record_removed(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run)
    stage.at_step(run)
    (run.path / "process.json").unlink()
    second = stage.train(run)
    time.sleep(15)
    starts = end_of(run), run.events_path.read_text().count('"kind":"start"')
    assert starts[1] == 1, "it was started a second time"
    began = time.monotonic()
    stage.trainer("stop", run.path)
    stage.gone(max(1, 13 - (time.monotonic() - began)))
    return f"one start; {run.state().status}; exit codes {process.wait(5)} and {second.wait(5)}"


@fault("config.json is damaged between the making of a run and its start", "refused with its reason; `list` works")
def config_damaged(stage: Stage) -> str:
    run, good = stage.new_run(), stage.new_run(epochs=1)
    path = run.path / "config.json"
    path.write_text(path.read_text()[:100])
    done = stage.trainer("train", "--run", run.path)
    assert done.returncode == 2, f"exit code {done.returncode}: {done.stderr[-200:]}"
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr[-300:]
    listed = stage.trainer("list", "--runs-dir", stage.runs_dir)
    assert listed.returncode == 0, listed.stderr[-300:]
    assert good.id in listed.stdout
    return done.stderr.strip()


@fault("events.jsonl is a folder", "refused or told in the log; no traceback, never stuck; 0 left")
def events_cannot_be_written(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    run.events_path.mkdir()
    process = stage.train(run)
    await_true(lambda: process.poll() is not None, 90, "the end of the run")
    assert "events.jsonl" in expect.last_words(run) or process.returncode == 2, expect.last_words(run)
    assert "Traceback" not in run.log_path.read_text()
    assert process.returncode != 0, "exit code 0 of a run that has no record of itself"
    return f"exit code {process.returncode}: {expect.last_words(run)[:200]}"


@fault(
    "another program holds a checkpoint open while it is replaced 20 times", "the reader sees one whole file; completed"
)
def reader_of_a_checkpoint(stage: Stage) -> str:
    from trainer import checkpoint

    run = stage.new_run(epochs=20)
    process = stage.train(run)
    stage.at_step(run, 7)
    read = 0
    while process.poll() is None:
        checkpoint.load(run.checkpoint_path("last"))
        read += 1
    seen = expect.completed(stage, run, process)
    return f"{seen}; read {read} times"
