"""Signals and terminals: Ctrl-C, a service manager, a closed window."""

import os
import random
import signal
import subprocess
import time

from tests.conftest import await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import DDP, IMPORTING, LONG, Stage, end_of
from tests.faults.stopping import SHELL


def signalled(stage: Stage, *numbers: signal.Signals, group: bool = False, ddp: bool = True) -> str:
    run = stage.new_run(LONG, DDP if ddp else {})
    process = stage.train(run)
    stage.at_step(run)
    began = time.monotonic()
    for number in numbers:
        (os.killpg if group else os.kill)(process.pid, number)
        time.sleep(0.2)
    return expect.stopped(stage, run, began)


@fault("SIGINT to the launcher's pid only", "stopped with a checkpoint in 10 s; 0 left", quick=True)
def sigint_to_the_launcher(stage: Stage) -> str:
    return signalled(stage, signal.SIGINT)


@fault("Ctrl-C: SIGINT to the whole group", "stopped with a checkpoint in 10 s; 0 left")
def ctrl_c(stage: Stage) -> str:
    return signalled(stage, signal.SIGINT, group=True)


@fault("Ctrl-C twice", "stopped at once; 0 left")
def ctrl_c_twice(stage: Stage) -> str:
    return signalled(stage, signal.SIGINT, signal.SIGINT, group=True)


@fault("SIGTERM to the whole group, as a service manager sends it", "stopped with a checkpoint in 10 s; 0 left")
def sigterm_to_the_group(stage: Stage) -> str:
    return signalled(stage, signal.SIGTERM, group=True)


@fault("SIGTERM to the launcher while it imports torch", "in 10 s nothing is left and it is not shown as running")
def sigterm_while_importing(stage: Stage) -> str:
    run = stage.new_run(LONG)
    process = stage.train(run, f"{IMPORTING} rank=launcher do=sleep:4")
    await_true(lambda: run.has_claim, expect.START_UP, "the claim")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    stage.gone(10)
    process.wait(5)
    status = run.state().status
    assert status in ("stopped", "interrupted", "queued"), status
    return f"{status}, exit code {process.returncode}"


@fault("Ctrl-C to the launcher while it imports torch", "in 10 s nothing is left; no traceback; not shown as running")
def ctrl_c_while_importing(stage: Stage) -> str:
    run = stage.new_run(LONG)
    process = stage.train(run, f"{IMPORTING} rank=launcher do=sleep:4", stderr=subprocess.PIPE, text=True)
    await_true(lambda: run.has_claim, expect.START_UP, "the claim")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    stage.gone(10)
    said = process.communicate(timeout=5)[1]
    assert run.state().status in ("stopped", "interrupted", "queued"), run.state().status
    assert "Traceback" not in said, f"a traceback of {len(said.splitlines())} lines"
    return f"{run.state().status}, exit code {process.returncode}"


@fault("the terminal is closed: the reader of stdout is gone, then SIGHUP to the group", "stopped in 10 s; 0 left")
def terminal_closed(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    stage.at_step(run)
    assert process.stdout
    process.stdout.close()
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGHUP)
    return expect.stopped(stage, run, began)


@fault("only the reader of stdout goes away (`train | head -1`)", "the run completes; events and log are whole")
def reader_of_stdout_gone(stage: Stage) -> str:
    run = stage.new_run(DDP, epochs=2)
    process = stage.train(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    seen = expect.completed(stage, run, process)
    assert "completed at step" in run.log_path.read_text()
    return seen


@fault("20 runs are stopped at random moments of their first 8 s, single and ddp", "20 of 20 in 10 s; 0 left")
def twenty_stops(stage: Stage) -> str:
    draw = random.Random(0)
    slowest = 0.0
    for number in range(20):
        run = stage.new_run(LONG, DDP if number % 2 else {})
        stage.train(run)
        time.sleep(draw.uniform(0.3, 8))
        began = time.monotonic()
        while (done := stage.trainer("stop", run.path)).returncode:
            assert time.monotonic() - began < 30, done.stderr
        stage.gone(max(0.5, 10 + SHELL - (time.monotonic() - began)))
        slowest = max(slowest, time.monotonic() - began)
        status = run.state().status
        assert status == "stopped", f"run {number} ended as {status}: {end_of(run) if run.has_claim else 'unclaimed'}"
    return f"20 of 20, the slowest in {slowest:.1f} s with the start of the command"
