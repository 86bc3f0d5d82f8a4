"""Ranks that stop making progress without dying, and runs that only look as if they did."""

import os
import signal
import time

from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import DDP, EVALUATING, JOINING, LONG, SAVING, STEP, Stage, events

LIMIT = 15  # seconds of silence that these runs allow: on a busy machine the start of a rank is silent for some
BEGINNING = "at=trainer.session:begin"


def hangs(stage: Stage, order: str, *words: str, rank: int = 1, **settings) -> str:
    """The run ends as failed within the limit and 10 s, and names the rank that hangs, not the one that waits."""
    run = stage.new_run(DDP, LONG, settings, silence_limit=LIMIT)
    process = stage.train(run, order)
    began = time.monotonic()
    seen = expect.failed(stage, run, process, *words, rank=rank, cause="hang", seconds=120)
    steps = events(run, "step")
    late = events(run, "end")[-1]["time"] - steps[-1]["time"] if steps else time.monotonic() - began - 20
    assert late <= LIMIT + 10, f"told only after {late:.1f} s: {seen}"
    return f"{seen}, {late:.1f} s later" if steps else seen


@fault("rank 1 sleeps in step 3", "failed after silence_limit (+10 s): rank 1, hang, step 3; 0 left")
def rank_hangs(stage: Stage) -> str:
    return hangs(stage, f"{STEP} step=3 rank=1 do=sleep", "Rank 1", "step 3")


@fault("rank 0 spins in step 3", "failed: rank 0, hang; 0 left")
def rank_spins(stage: Stage) -> str:
    return hangs(stage, f"{STEP} step=3 rank=0 do=spin", "step 3", rank=0)


@fault("rank 1 is frozen in step 3 (SIGSTOP), so it hears no SIGTERM", "failed: rank 1, hang; 0 left")
def rank_frozen(stage: Stage) -> str:
    return hangs(stage, f"{STEP} step=3 rank=1 do=kill:SIGSTOP", "step 3")


@fault("rank 1 hangs in native code that holds the interpreter", "failed: rank 1, hang; 0 left")
def rank_holds_interpreter(stage: Stage) -> str:
    return hangs(stage, f"{STEP} step=3 rank=1 do=hold", "step 3")


@fault("rank 1 hangs and its SIGTERM handler spins", "failed: rank 1, hang; killed; 0 left")
def rank_hangs_deaf(stage: Stage) -> str:
    return hangs(stage, f"{STEP} step=3 rank=1 do=deaf+sleep", "step 3")


@fault("rank 1 never joins the group", "failed: rank 1, hang, says that it did not join; 0 left")
def rank_never_joins(stage: Stage) -> str:
    return hangs(stage, f"{JOINING} rank=1 do=sleep", "join")


@fault("rank 1 hangs while it loads the data and builds the network", "failed: rank 1, hang; 0 left")
def rank_hangs_beginning(stage: Stage) -> str:
    return hangs(stage, f"{BEGINNING} rank=1 do=sleep")


@fault("rank 1 hangs in the evaluation", "failed: rank 1, hang, says that it evaluated; 0 left")
def rank_hangs_evaluating(stage: Stage) -> str:
    return hangs(stage, f"{EVALUATING} rank=1 do=sleep", "evaluat")


@fault("rank 0 hangs while it saves (a network disk that is gone)", "failed: rank 0, hang, says that it saved; 0 left")
def rank_hangs_saving(stage: Stage) -> str:
    return hangs(stage, f"{SAVING} rank=0 call=2 do=sleep", "sav", rank=0)


@fault("the process of a single run hangs in step 3", "failed: hang; 0 left")
def single_hangs(stage: Stage) -> str:
    return hangs(stage, f"{STEP} step=3 do=sleep", "step 3", rank=0, parallel="single")


@fault("the process of a single run holds the interpreter for ever", "failed: hang; 0 left")
def single_holds_interpreter(stage: Stage) -> str:
    return hangs(stage, f"{STEP} step=3 do=hold", "step 3", rank=0, parallel="single")


@fault("every step of rank 1 takes two thirds of the limit", "slow is not hanging: the run completes")
def rank_is_slow(stage: Stage) -> str:
    order = "; ".join(f"{STEP} step={step} rank=1 do=sleep:10" for step in (2, 3))
    run = stage.new_run(DDP, silence_limit=LIMIT, epochs=1)
    return expect.completed(stage, run, stage.train(run, order))


@fault("Ctrl-Z for longer than the limit, then fg: all processes stop and go on", "not taken for a hang: it goes on")
def whole_run_paused(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG, silence_limit=LIMIT)
    process = stage.train(run)
    stage.at_step(run)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(LIMIT + 3)
    os.killpg(process.pid, signal.SIGCONT)
    seen = expect.goes_on(stage, run)
    stage.trainer("stop", run.path)
    return seen


@fault("only the launcher is stopped for longer than the limit, then goes on", "the run goes on and can be stopped")
def launcher_paused(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG, silence_limit=LIMIT)
    process = stage.train(run)
    stage.at_step(run)
    process.send_signal(signal.SIGSTOP)
    time.sleep(LIMIT + 3)
    process.send_signal(signal.SIGCONT)
    seen = expect.goes_on(stage, run)
    began = time.monotonic()
    stage.trainer("stop", run.path)
    return f"{seen}, {expect.stopped(stage, run, began, 15)}"


@fault("the clock of rank 1 is set a day back, that of rank 0 a day ahead", "clocks are no progress: the run completes")
def clocks_are_set(stage: Stage) -> str:
    order = f"{STEP} step=3 rank=1 do=clock:-86400; {STEP} step=3 rank=0 do=clock:86400"
    run = stage.new_run(DDP, silence_limit=LIMIT)
    return expect.completed(stage, run, stage.train(run, order))


@fault("the clock is a day behind that of the earlier part of the run when it is resumed", "completed, not superseded")
def resumed_in_the_past(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run, f"{STEP} step=1 do=clock:86400"))
    done = stage.trainer("resume", run.path, "--epochs", 2)
    assert done.returncode == 0, done.stderr
    assert run.state().status == "completed", run.state().status
    return f"completed at step {run.state().end['step']}"
