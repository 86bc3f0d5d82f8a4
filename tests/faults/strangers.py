"""What people and programs do to run directories: sync tools, backups, other users, containers, links and renames."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import DDP, LONG, Stage, events
from trainer.run_list import list_runs
from trainer.runs import Run

UNPRIVILEGED = "-dac_override,-dac_read_search,-fowner"
ELSEWHERE = "20200101-000000-single-abcd"


def _status(stage: Stage, run: Run) -> str:
    return next(row["status"] for row in list_runs(stage.runs_dir) if row["id"] == run.id)


@fault(
    "the run trains in a container: its processes have other pids there",
    "running; resume is refused; Stop from outside ends it in 10 s",
    root=True,
)
def another_container(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    stage.train(run, prefix=("unshare", "-pf", "--mount-proc"))
    stage.at_step(run)
    assert _status(stage, run) == "running", _status(stage, run)
    refused = stage.trainer("resume", run.path)
    assert "is running" in refused.stderr, refused.stderr
    began = time.monotonic()
    done = stage.trainer("stop", run.path)
    assert done.returncode == 0, done.stderr
    return expect.stopped(stage, run, began, 13)


@fault("a run directory of another user lies among ours and may not be entered", "`list` and new runs work", root=True)
def foreign_run_directory(stage: Stage) -> str:
    foreign = stage.new_run(epochs=1)
    expect.completed(stage, foreign, stage.train(foreign))
    os.chown(foreign.path, 65534, 65534)
    foreign.path.chmod(0o700)
    run = stage.new_run(epochs=1)
    prefix = ("setpriv", f"--bounding-set={UNPRIVILEGED}", f"--inh-caps={UNPRIVILEGED}")
    seen = expect.completed(stage, run, stage.train(run, prefix=prefix))
    argv = (*prefix, sys.executable, "-m", "trainer", "list", "--runs-dir", stage.runs_dir)
    process = stage.program(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert run.id in out, out
    return f"{seen}; the list has it"


def _away_for_a_moment(stage: Stage, run: Run) -> str:
    stage.train(run)
    stage.at_step(run)
    settings = run.path / "config.json"
    for _ in range(3):
        settings.rename(run.path / "config.json~")
        time.sleep(1)
        (run.path / "config.json~").rename(settings)
    seen = expect.goes_on(stage, run)
    began = time.monotonic()
    stage.trainer("stop", run.path)
    return f"{seen}; {expect.stopped(stage, run, began, 13)}"


@fault("config.json is away for a second, three times, as a sync tool does it; single", "the run goes on")
def settings_away_single(stage: Stage) -> str:
    return _away_for_a_moment(stage, stage.new_run(LONG))


@fault("config.json is away for a second, three times, as a sync tool does it; ddp", "the run goes on")
def settings_away_ddp(stage: Stage) -> str:
    return _away_for_a_moment(stage, stage.new_run(DDP, LONG))


def _events_handled(stage: Stage, handle) -> str:
    """A resumed run, so that its process.json says where in the events it began."""
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    run.prepare_resume(epochs=40)
    process = stage.train(run)
    await_true(lambda: run.state().status == "running" and run.state().step["step"] >= 12, 60, "step 12")
    handle(run.events_path)
    now = run.last_step()
    await_true(lambda: run.state().step.get("step", 0) > now, 60, "a step after that")
    shown = _status(stage, run)
    assert shown == "running", f"shown as {shown} while it trains"
    expect.completed(stage, run, process)
    last = events(run, "step")[-1]["step"]
    (row,) = list_runs(stage.runs_dir)
    assert (row["status"], row["step"]) == ("completed", last), row
    return f"completed at step {last}, and told so"


@fault("events.jsonl is removed while the run trains", "what follows is kept: running, then completed")
def events_removed(stage: Stage) -> str:
    return _events_handled(stage, Path.unlink)


@fault("events.jsonl is replaced by an editor while the run trains (sed -i)", "what follows is kept")
def events_replaced(stage: Stage) -> str:
    return _events_handled(stage, lambda path: subprocess.run(["sed", "-i", "$d", path], check=True))


@fault("events.jsonl is cut to nothing while the run trains (copytruncate of logrotate)", "what follows is kept")
def events_cut(stage: Stage) -> str:
    return _events_handled(stage, lambda path: os.truncate(path, 0))


@fault("a backup of hard links was made (cp -al), then the run is resumed", "the backup keeps what it had")
def hard_linked_backup(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    backup = Run(stage.runs_dir / ELSEWHERE)
    shutil.copytree(run.path, backup.path, copy_function=os.link)
    before = backup.events_path.read_bytes(), backup.log_path.read_bytes()
    done = stage.trainer("resume", run.path, "--epochs", 2)
    assert done.returncode == 0, done.stderr
    assert (backup.events_path.read_bytes(), backup.log_path.read_bytes()) == before, "the backup was written to"
    assert run.state().epoch == 2
    return f"{run.state().status} at epoch 2, the backup at {backup.state().epoch:g}"


@fault("the run was moved to a larger disk, with a link in its place", "resumed in its queue; deleted with its data")
def moved_with_a_link(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    disk = stage.directory / "disk"
    disk.mkdir()
    shutil.move(run.path, disk / run.id)
    run.path.symlink_to(disk / run.id)
    holder = stage.new_run(LONG)
    stage.train(holder)
    stage.at_step(holder)
    run.prepare_resume(epochs=2)
    process = stage.train(run)
    await_true(lambda: "queued" in run.log_path.read_text(), 60, "its place in the queue")
    stage.trainer("stop", holder.path)
    assert process.wait(90) == 0
    assert run.state().status == "completed"
    run.delete()
    left = [path.name for path in (*disk.iterdir(), *stage.runs_dir.glob("*")) if run.id in path.name]
    assert not left, f"left: {left}"
    return "waited, completed, deleted with its data"


@fault("a run is resumed by a link to it that lies elsewhere", "it waits in the queue of its runs directory")
def resumed_by_a_link(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    link = stage.directory / "my run"
    link.symlink_to(run.path)
    holder = stage.new_run(LONG)
    stage.train(holder)
    stage.at_step(holder)
    process = stage.program(sys.executable, "-m", "trainer", "resume", link, "--epochs", 2)
    await_true(lambda: run.state().status == "queued", 60, "the queue")
    stage.trainer("stop", holder.path)
    assert process.wait(90) == 0
    return f"waited, then {run.state().status}"


@fault("a run is renamed to a name that is no id, then resumed", "refused: it would be in no list and no queue")
def renamed_and_resumed(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    renamed = Run(run.path.rename(stage.runs_dir / "my best run"))
    done = stage.trainer("resume", renamed.path, "--epochs", 2)
    assert done.returncode == 2
    assert "was renamed" in done.stderr, done.stderr
    assert renamed.state().status == "completed"
    return done.stderr.strip()


@fault("`export --output` names files of the run itself", "refused; the run keeps them")
def exported_over_itself(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    for name in ("config.json", "events.jsonl", "last.pt", "process.json"):
        before = (run.path / name).read_bytes()
        done = stage.trainer("export", run.path, "--output", run.path / name)
        assert done.returncode == 2, done
        assert (run.path / name).read_bytes() == before
    return done.stderr.strip()


@fault("resume of a completed run whose GPU is not in this machine", "refused; it stays completed, with its settings")
def resumed_without_its_gpu(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    run.write_config(run.config().changed(devices="63"))
    done = stage.trainer("resume", run.path, "--epochs", 3)
    assert done.returncode == 2
    assert "devices" in done.stderr, done.stderr
    assert (run.state().status, run.config().epochs) == ("completed", 1)
    return f"{done.stderr.strip()}; {run.state().status}"


@fault("the runs directory is given relative to a working directory", "a run whose shell died is trained by the next")
def relative_runs_directory(stage: Stage) -> str:
    holder, waiting = stage.new_run(epochs=3), stage.new_run(epochs=1)
    place = {"cwd": stage.directory}
    first = stage.program(sys.executable, "-m", "trainer", "train", "--run", f"runs/{holder.id}", **place)
    stage.at_step(holder)
    second = stage.program(sys.executable, "-m", "trainer", "train", "--run", f"runs/{waiting.id}", **place)
    await_true(lambda: waiting.launch().get("waiting") and "queued" in waiting.log_path.read_text(), 60, "the queue")
    second.kill()
    first.wait(90)
    expect.await_status(waiting, "completed")
    stage.gone(10)
    return "completed"


@fault("the disk is full while a run waits for its turn", "the waiting shell goes on and trains", root=True)
def disk_full_while_waiting(stage: Stage) -> str:
    stage.runs_dir = stage.mount("disk", "size=400m") / "runs"
    holder, run = stage.new_run(LONG), stage.new_run(epochs=1)
    stage.train(holder)
    stage.at_step(holder)
    process = stage.train(run)
    await_true(lambda: run.log_path.exists() and "queued" in run.log_path.read_text(), 60, "the queue")
    filler = stage.runs_dir.parent / "filler"
    with filler.open("wb") as file:
        subprocess.run(["head", "-c", "500M", "/dev/zero"], stdout=file, stderr=subprocess.DEVNULL, check=False)
    time.sleep(3)
    assert process.poll() is None, expect.last_words(run)
    filler.unlink()
    stage.trainer("stop", holder.path)
    return expect.completed(stage, run, process)


@fault("the helper that watches a single run is frozen, and the run is killed", "nothing is left")
def watcher_frozen(stage: Stage) -> str:
    run = stage.new_run(LONG)
    process = stage.train(run)
    stage.at_step(run)
    helpers = [known for known in stage.members() if known[0] != process.pid]
    assert helpers
    for pid, _ in helpers:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait(5)
    return f"gone in {stage.gone(5):.1f} s; {run.state().status}"


@fault(
    "PYTHONINSPECT, TORCH_DISTRIBUTED_DEBUG=DETAIL, a GLOO_SOCKET_IFNAME that is not there and RANK are set",
    "none of them matters: completed",
)
def environment_of_others(stage: Stage) -> str:
    for env in (
        {"PYTHONINSPECT": "1"},
        {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        {"GLOO_SOCKET_IFNAME": "nope0"},
        {"RANK": "0"},
    ):
        run = stage.new_run(DDP, epochs=1)
        seen = expect.completed(stage, run, stage.train(run, env=env))
    return f"4 times {seen}"
