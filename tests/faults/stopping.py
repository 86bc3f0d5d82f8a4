"""Stop, in every state a run can be in, by every way that a person has."""

import os
import signal
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
    return stop_at_step(stage, f"{SAVING} rank=0 call=2 do=sleep", 6, 3, **DDP)


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
