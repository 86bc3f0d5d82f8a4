"""Stop, in every state a run can be in, by every way that a person has."""

import os
import signal
import subprocess
import time

from tests.conftest import await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import (
    DDP,
    EVALUATING,
    IMPORTING,
    JOINING,
    LONG,
    PREPARING,
    SAVING,
    STEP,
    Stage,
    end_of,
    events,
    in_background,
)
from trainer.runs import Run

SHELL = 3.0  # seconds that `python -m trainer stop` itself needs to start, on a busy machine


def stop(stage: Stage, run: Run) -> str:
    """`python -m trainer stop RUN`; everything is over 10 s later."""
    began = time.monotonic()
    done = stage.trainer("stop", run.path)
    assert done.returncode == 0, done.stderr
    return expect.stopped(stage, run, began, 10 + SHELL)


def stop_at_step(stage: Stage, order: str = "", step: int = 3, settle: float = 0.0, **settings) -> str:
    run = stage.new_run(LONG, settings)
    stage.train(run, order)
    stage.at_step(run, step)
    time.sleep(settle)
    return stop(stage, run)


@fault("Stop in the middle of an epoch, single", "stopped in 10 s, a checkpoint that loads; 0 left", quick=True)
def stop_single(stage: Stage) -> str:
    return stop_at_step(stage)


@fault("Stop in the middle of an epoch, ddp", "stopped in 10 s, a checkpoint that loads; 0 left", quick=True)
def stop_ddp(stage: Stage) -> str:
    return stop_at_step(stage, **DDP)


@fault("Stop while rank 1 hangs", "stopped in 10 s; 0 left")
def stop_while_hanging(stage: Stage) -> str:
    return stop_at_step(stage, f"{STEP} step=3 rank=1 do=sleep", 2, 1, **DDP)


@fault("Stop while rank 1 hangs with a spinning SIGTERM handler", "killed: stopped in 10 s; 0 left")
def stop_while_deaf(stage: Stage) -> str:
    return stop_at_step(stage, f"{STEP} step=3 rank=1 do=deaf+sleep", 2, 1, **DDP)


@fault("Stop while rank 1 is frozen (SIGSTOP)", "killed: stopped in 10 s; 0 left")
def stop_while_frozen(stage: Stage) -> str:
    return stop_at_step(stage, f"{STEP} step=3 rank=1 do=kill:SIGSTOP", 2, 1, **DDP)


@fault("Stop while the launcher is suspended (Ctrl-Z)", "stopped in 10 s; 0 left")
def stop_while_suspended(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run)
    stage.at_step(run)
    os.killpg(process.pid, signal.SIGSTOP)
    return stop(stage, run)


@fault("Stop while it evaluates", "stopped in 10 s; 0 left")
def stop_while_evaluating(stage: Stage) -> str:
    return stop_at_step(stage, f"{EVALUATING} rank=0 do=sleep:3", 6, 0.3, **DDP)


@fault("Stop while it saves, slowly", "stopped in 10 s, no temporary file; 0 left")
def stop_while_saving(stage: Stage) -> str:
    return stop_at_step(stage, f"{SAVING} rank=0 do=sleep:3", 6, 0.3, **DDP)


@fault("Stop while saving hangs for ever", "killed: stopped in 10 s, no temporary file; 0 left")
def stop_while_saving_hangs(stage: Stage) -> str:
    return stop_at_step(stage, f"{SAVING} rank=0 call=2 do=sleep", 12, 2, **DDP)


def stop_early(stage: Stage, order: str, ranks: int, **settings) -> str:
    run = stage.new_run(LONG, settings)
    stage.train(run, order)
    await_true(lambda: run.has_claim, expect.START_UP, "the claim")
    if ranks:
        stage.ranks(run, ranks)
    return stop(stage, run)


@fault("Stop while the launcher imports torch", "stopped in 10 s; 0 left")
def stop_while_importing(stage: Stage) -> str:
    return stop_early(stage, f"{IMPORTING} rank=launcher do=sleep:8", 0)


@fault("Stop while the data are prepared and nothing is told for long", "stopped in 10 s; 0 left")
def stop_while_preparing(stage: Stage) -> str:
    return stop_early(stage, f"{PREPARING} do=sleep", 0)


@fault("Stop while the ranks wait for one that does not join", "stopped in 10 s; 0 left")
def stop_while_joining(stage: Stage) -> str:
    return stop_early(stage, f"{JOINING} rank=1 do=sleep", 2, **DDP)


@fault("Stop from three shells at once", "each exits 0; one `end`; stopped in 10 s; 0 left")
def three_stops(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    stage.train(run)
    stage.at_step(run)
    others = [in_background(lambda: stage.trainer("stop", run.path)) for _ in range(2)]
    seen = stop(stage, run)
    for other in others:
        other.join(30)
    assert len(events(run, "end")) == 1, events(run, "end")
    return seen


@fault("Stop of a run that has completed", "exit code 0; still completed; its files are as they were")
def stop_of_an_ended_run(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    before = run.events_path.read_bytes()
    done = stage.trainer("stop", run.path)
    assert done.returncode == 0, done.stderr
    assert run.state().status == "completed", run.state().status
    assert run.events_path.read_bytes() == before
    return done.stdout.strip()


@fault("Stop of a run whose launcher was killed", "exit code 0; says what it is; 0 left")
def stop_of_a_dead_run(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run)
    stage.at_step(run)
    process.kill()
    process.wait(5)
    done = stage.trainer("stop", run.path)
    assert done.returncode == 0, done.stderr
    stage.gone(5)
    return done.stdout.strip()


@fault("a file `stop` lies in the run directory before it starts", "stopped before it trains, or trained; never stuck")
def stop_before_start(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    run.ask_to_stop()
    process = stage.train(run)
    end = expect.told(run, process)
    assert end["status"] in ("stopped", "completed"), end
    stage.gone(5)
    return f"{end['status']} at step {end['step']}"


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


@fault("SIGTERM to the launcher while it imports torch", "in 5 s nothing is left and it is not shown as running")
def sigterm_while_importing(stage: Stage) -> str:
    run = stage.new_run(LONG)
    process = stage.train(run, f"{IMPORTING} rank=launcher do=sleep:10")
    await_true(lambda: run.has_claim, expect.START_UP, "the claim")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    stage.gone(5)
    process.wait(5)
    status = run.state().status
    assert status in ("stopped", "interrupted", "queued"), status
    return f"{status}, exit code {process.returncode}"


@fault("Ctrl-C to the launcher while it imports torch", "in 5 s nothing is left; no traceback; not shown as running")
def ctrl_c_while_importing(stage: Stage) -> str:
    run = stage.new_run(LONG)
    process = stage.train(run, f"{IMPORTING} rank=launcher do=sleep:10", stderr=subprocess.PIPE, text=True)
    await_true(lambda: run.has_claim, expect.START_UP, "the claim")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    stage.gone(5)
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
    import random

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
