"""Limits that a machine sets its users: descriptors, processes, memory, rights."""

import os
from subprocess import PIPE

from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.disk import NOBODY
from tests.faults.environment import LITTLE, in_shell
from tests.faults.stage import DDP, LONG, STEP, Stage


def few(stage: Stage, *limits: str) -> str:
    """Under this limit a run completes, or fails in words; it does not hang and leaves nobody."""
    run = stage.new_run(LITTLE, DDP)
    process = stage.train(run, prefix=("prlimit", *limits), stderr=PIPE, text=True)
    said = process.communicate(timeout=120)[1]
    stage.gone(5)
    status = run.state().status
    assert status in ("completed", "failed"), f"{status}, exit code {process.returncode}: {said[-300:]}"
    return f"{status}: {run.state().error or 'in spite of it'}"


@fault("40 file descriptors at most", "completed, or failed in words; never stuck; 0 left")
def few_descriptors(stage: Stage) -> str:
    return few(stage, "--nofile=40:40")


@fault("20 file descriptors at most", "completed, or failed in words; never stuck; 0 left")
def very_few_descriptors(stage: Stage) -> str:
    return few(stage, "--nofile=20:20")


def as_nobody(stage: Stage, *prefix: str) -> str:
    """A single run as a user without any rights completes, or fails in words.

    Single, for the interpreter may lie where only its owner may execute it a second time.
    """
    run = stage.new_run(LITTLE)
    for path in (stage.directory, stage.runs_dir, run.path, *run.path.iterdir()):
        os.chown(path, 65534, 65534)
    env = {"PARALLEL_TRAINER_CACHE": str(stage.directory / "cache")}
    process = stage.train(run, prefix=(*prefix, *NOBODY), env=env, stderr=PIPE, text=True)
    said = process.communicate(timeout=120)[1]
    stage.gone(5)
    assert "Traceback" not in said, said[-300:]
    status = run.state().status
    # Where it gets no threads, OpenBLAS sends SIGINT to its own process, which is a stop like any other, and says so.
    log = run.log_path.read_text() if run.log_path.exists() else ""
    is_told = status in ("completed", "failed", "interrupted") or (status == "stopped" and "OpenBLAS" in log)
    assert is_told or process.returncode == 2, f"{status}: {said[-300:]} {log[-300:]}"
    return f"{status}, exit code {process.returncode}: {run.state().error or said.strip()[-200:]}"


@fault("no more than 3 processes and threads for this user", "ended, and told so in words; 0 left", root=True)
def few_processes(stage: Stage) -> str:
    return as_nobody(stage, "prlimit", "--nproc=3:3")


@fault("the memory runs out in step 3 (address space limited)", "failed, cause memory, advice for a smaller batch")
def memory_runs_out(stage: Stage) -> str:
    run = stage.new_run(LONG)
    prefix = ("prlimit", "--as=8000000000")
    return expect.failed(
        stage, run, stage.train(run, f"{STEP} step=3 do=eat", prefix=prefix), "memory", "batch", cause="memory"
    )


@fault("torch cannot allocate a tensor of rank 1 (its own RuntimeError)", "failed: rank 1, cause memory, advice")
def torch_out_of_memory(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    order = f"{STEP} step=3 rank=1 do=memory"
    return expect.failed(stage, run, stage.train(run, order), "batch", rank=1, cause="memory")


@fault("HOME is not set", "completed", root=True)
def no_home(stage: Stage) -> str:
    seen = as_nobody(stage, "env", "-u", "HOME")
    assert seen.startswith("completed"), seen
    return seen


@fault("umask 0777: new files are readable by nobody", "completed, or failed in words; 0 left", root=True)
def umask_0777(stage: Stage) -> str:
    return as_nobody(stage, *in_shell("umask 0777"))
