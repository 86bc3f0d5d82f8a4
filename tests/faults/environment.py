"""Machines and shells that are not as a program would like them."""

import os
import socket
import sys
import time
from subprocess import PIPE
from typing import Any

from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import DDP, LONG, STEP, Stage, events

PORTS = (12355, 23456, 29500)
LITTLE = {"epochs": 1}


def completes(stage: Stage, *kinds: dict[str, Any], order: str = "", **options: Any) -> str:
    run = stage.new_run(LITTLE, *kinds)
    return expect.completed(stage, run, stage.train(run, order, **options))


def in_shell(script: str) -> tuple[str, ...]:
    """A shell that does this and then becomes the trainer."""
    return ("sh", "-c", f'{script}; exec "$@"', "sh")


@fault("the ports 12355, 23456 and 29500 are taken", "no fixed port is used: completed")
def ports_taken(stage: Stage) -> str:
    for port in PORTS:
        try:
            stage.exits.enter_context(socket.create_server(("", port)))
        except OSError:
            continue  # another program has it: as good
    return completes(stage, DDP)


@fault("four ddp runs in four runs directories at once", "no clash of addresses; all complete")
def four_groups_at_once(stage: Stage) -> str:
    runs, processes = [], []
    for number in range(4):
        stage.runs_dir = stage.directory / f"runs-{number}"
        runs.append(stage.new_run(LITTLE, DDP, max_steps=2))
        processes.append(stage.train(runs[-1]))
    for run, process in zip(runs, processes, strict=True):
        end = expect.told(run, process, 240)
        assert end["status"] == "completed", end
    return "four completed"


@fault("20 ddp runs one after the other", "no address in use; 20 of 20 complete")
def twenty_groups(stage: Stage) -> str:
    for _ in range(20):
        run = stage.new_run(LITTLE, DDP, max_steps=1)
        expect.completed(stage, run, stage.train(run))
    return "20 completed"


@fault("a GPU is asked for where there is none", "refused before anything starts: exit code 2, the field, no run")
def gpu_that_is_not_there(stage: Stage) -> str:
    done = stage.trainer("train", "--preset", "smoke", "--devices", "63", "--runs-dir", stage.runs_dir)
    assert done.returncode == 2, done.stderr
    assert "devices" in done.stderr
    assert not stage.runs_dir.exists() or not list(stage.runs_dir.iterdir())
    return done.stderr.strip()


@fault("MASTER_ADDR, MASTER_PORT, WORLD_SIZE, LOCAL_RANK leak from another program", "ignored: completed")
def foreign_group(stage: Stage) -> str:
    env = {"MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "5", "GROUP_RANK": "3"}
    return completes(stage, DDP, env=env)


@fault("CUDA_VISIBLE_DEVICES holds garbage on a machine without GPUs", "completed on the CPU")
def garbage_for_cuda(stage: Stage) -> str:
    return completes(stage, DDP, {"devices": "auto"}, env={"CUDA_VISIBLE_DEVICES": "GPU-nonsense,-1,7"})


@fault("OMP_NUM_THREADS=64 on a machine with few cores", "each rank takes its share of the cores: completed")
def too_many_threads(stage: Stage) -> str:
    run = stage.new_run(LITTLE, DDP)
    seen = expect.completed(stage, run, stage.train(run, env={"OMP_NUM_THREADS": "64"}))
    threads = events(run, "start")[0]["threads"]
    assert threads <= max(1, len(os.sched_getaffinity(0)) // 2), f"{threads} threads a rank"
    return f"{seen}, {threads} threads a rank"


@fault("a locale without UTF-8, and a run with Unicode in its name and its path", "completed; the log is whole")
def locale_is_c(stage: Stage) -> str:
    stage.runs_dir = stage.directory / "läufe 跑"
    env = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    return completes(stage, DDP, {"label": "größer ✓"}, env=env)


@fault(
    "the runs directory's path holds spaces, quotes, Unicode, a dollar and a line break", "completed, listed, stopped"
)
def hostile_path(stage: Stage) -> str:
    stage.runs_dir = stage.directory / "a b 'c' \"d\" $HOME %s ü\n;touch x"
    run = stage.new_run(DDP, LONG)
    stage.train(run)
    stage.at_step(run)
    listed = stage.trainer("list", "--runs-dir", stage.runs_dir, "--json")
    assert run.id in listed.stdout, listed.stderr
    began = time.monotonic()
    stage.trainer("stop", run.id, "--runs-dir", stage.runs_dir)
    return expect.stopped(stage, run, began, 13)


@fault("a path of more than 1,000 characters", "completed")
def long_path(stage: Stage) -> str:
    stage.runs_dir = stage.directory.joinpath(*["x" * 200] * 5)
    return completes(stage, DDP)


@fault("a rank prints 65,000 lines and nobody reads stdout", "not blocked: Stop and the end work; 0 left")
def flood_of_output(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    order = f"{STEP} step=3 rank=1 do=flood"
    process = stage.train(run, order, stdout=PIPE, stderr=PIPE)
    stage.at_step(run, 6)
    began = time.monotonic()
    stage.trainer("stop", run.path)
    seen = expect.stopped(stage, run, began, 13)
    process.wait(5)
    return seen


@fault("descriptors 0, 1 and 2 are closed at the start", "completed; no file of the run holds foreign bytes")
def standard_descriptors_closed(stage: Stage) -> str:
    return completes(stage, DDP, prefix=in_shell("exec <&- >&- 2>&-"))


@fault("the parent ignores SIGCHLD, so that exit codes are lost (some service managers)", "completed")
def exit_codes_lost(stage: Stage) -> str:
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    return completes(stage, DDP, prefix=(sys.executable, "-c", code))


@fault("the parent has blocked SIGTERM and SIGINT", "Stop works in 10 s; 0 left")
def signals_blocked(stage: Stage) -> str:
    code = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT]);"
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    run = stage.new_run(DDP, LONG)
    stage.train(run, prefix=(sys.executable, "-c", code))
    stage.at_step(run)
    began = time.monotonic()
    stage.trainer("stop", run.path)
    return expect.stopped(stage, run, began, 13)


@fault("python -OO: assertions and docstrings are gone", "completed")
def assertions_off(stage: Stage) -> str:
    return completes(stage, DDP, env={"PYTHONOPTIMIZE": "2"})


@fault("TMPDIR leads to a folder that is not there", "completed, or failed in words")
def no_temporary_folder(stage: Stage) -> str:
    return completes(stage, DDP, env={"TMPDIR": str(stage.directory / "nowhere")})


@fault("the working directory was removed before the start", "refused in a sentence: torch cannot be loaded there")
def no_working_directory(stage: Stage) -> str:
    place = stage.directory / "gone"
    place.mkdir()
    run = stage.new_run(LITTLE, DDP)
    pipes = {"stderr": PIPE, "text": True}
    process = stage.train(run, prefix=in_shell(f"cd '{place}'; rmdir '{place}'"), **pipes)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2, f"exit code {process.returncode}: {said}"
    assert said.startswith("error: "), said
    assert said.count("\n") == 1, said
    assert run.state().status == "queued", run.state().status
    return said.strip()


@fault("the lowest priority beside two busy loops on every core", "the run completes, is not taken for a hang")
def machine_is_busy(stage: Stage) -> str:
    busy = [stage.program(sys.executable, "-c", "while True: pass") for _ in range(2 * (os.cpu_count() or 1))]
    run = stage.new_run(LITTLE, DDP, max_steps=3)
    process = stage.train(run, prefix=("nice", "-n", "10"))
    try:
        process.wait(240)
    finally:
        for other in busy:
            other.kill()
            other.wait(5)
    return expect.completed(stage, run, process)
