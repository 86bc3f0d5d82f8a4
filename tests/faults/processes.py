"""Ranks and launchers that die, each in its own way."""

import os
import signal
import time

from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import DDP, EVALUATING, IMPORTING, JOINING, LONG, SAVING, STEP, Stage, end_of


def dies(stage: Stage, order: str, *words: str, rank: int | None = 1, cause: str | tuple[str, ...] = "") -> str:
    """A ddp run of two ranks under this sabotage fails with these words."""
    run = stage.new_run(DDP, LONG)
    return expect.failed(stage, run, stage.train(run, order), *words, rank=rank, cause=cause)


@fault("rank 1 of 2 raises ValueError at step 3", "failed in 10 s with rank, type, words and step; 0 left", quick=True)
def rank_raises(stage: Stage) -> str:
    order = f"{STEP} step=3 rank=1 do=raise:ValueError:out-of-cheese"
    return dies(stage, order, "Rank 1", "ValueError", "out-of-cheese", "step 3", cause="exception")


@fault(
    "the weights of rank 1 are moved by 0.001 in step 3",
    "failed at the next evaluation, before anything is saved: rank 1, drift; 0 left",
    quick=True,
)
def rank_drifts(stage: Stage) -> str:
    seen = dies(stage, f"{STEP} step=3 rank=1 do=drift", "Rank 1", "not those of rank 0", "step 6", cause="drift")
    assert not list(stage.runs_dir.rglob("last.pt")), "weights that differ were saved"
    return seen


@fault(
    "the weights of rank 0, which is the one that is saved, are moved by 0.001 among three",
    "failed at the next evaluation: rank 0, drift, against the other two; 0 left",
)
def rank_0_of_three_drifts(stage: Stage) -> str:
    run = stage.new_run(LONG, parallel="ddp", processes=3)
    process = stage.train(run, f"{STEP} step=3 rank=0 do=drift")
    return expect.failed(stage, run, process, "Rank 0", "not those of the other ranks", rank=0, cause="drift")


@fault("both ranks raise at the same step", "failed in 10 s, one of them is named; 0 left")
def both_ranks_raise(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 do=raise", "sabotage", rank=None, cause="exception")


@fault(
    "rank 1 is killed from outside, as the kernel does when memory runs out",
    "failed in 10 s: rank 1, SIGKILL, memory",
    quick=True,
)
def rank_killed(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run)
    stage.at_step(run)
    os.kill(stage.ranks(run, 2)[1][0], signal.SIGKILL)
    return expect.failed(stage, run, process, "Rank 1", "SIGKILL", "memory", rank=1, cause=("signal", "memory"))


@fault("rank 0, which writes events and checkpoints, is killed", "failed in 10 s: rank 0, SIGKILL; 0 left")
def rank_0_killed(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=0 do=kill:SIGKILL", "SIGKILL", rank=0, cause=("signal", "memory"))


@fault("rank 1 crashes in native code (SIGSEGV)", "failed in 10 s: rank 1, SIGSEGV; 0 left")
def rank_segfaults(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=kill:SIGSEGV", "SIGSEGV", cause="signal")


@fault("rank 1 aborts, as C++ does on an uncaught error", "failed in 10 s: rank 1, SIGABRT; 0 left")
def rank_aborts(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=kill:SIGABRT", "SIGABRT", cause="signal")


@fault("rank 1 is terminated from outside (SIGTERM to its pid only)", "failed in 10 s: rank 1, SIGTERM; 0 left")
def rank_terminated(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=kill:SIGTERM", "SIGTERM", cause="signal")


@fault("rank 1 ends with os._exit(7)", "failed in 10 s: rank 1, exit code 7; 0 left")
def rank_exits(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=exit:7", "exit code 7", cause="exit")


@fault("rank 1 leaves with os._exit(0), as if all was well", "failed in 10 s: rank 1 did not finish; 0 left")
def rank_exits_with_0(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=exit:0", cause="exit")


@fault("rank 1 calls sys.exit(0)", "failed in 10 s: rank 1, not the one that lost it; 0 left")
def rank_calls_sys_exit(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=raise:SystemExit:0", cause=("exit", "exception"))


@fault("KeyboardInterrupt rises in rank 1", "failed in 10 s: rank 1, though mp.spawn takes it for success; 0 left")
def rank_is_interrupted(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=raise:KeyboardInterrupt", cause=("exception", "signal", "exit"))


@fault("SIGINT to the pid of rank 1", "Ctrl-C is the launcher's: the run goes on")
def rank_gets_sigint(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    stage.train(run)
    stage.at_step(run)
    os.kill(stage.ranks(run, 2)[1][0], signal.SIGINT)
    seen = expect.goes_on(stage, run)
    stage.trainer("stop", run.path)
    return seen


@fault(
    "the error of rank 1 holds a megabyte, NUL, a lone surrogate, HTML and terminal codes",
    "failed; `end` is one line of strict JSON under 4 kB, without control characters",
)
def rank_error_is_hostile(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, f"{STEP} step=3 rank=1 do=raise:RuntimeError:hostile")
    expect.failed(stage, run, process, "RuntimeError", rank=1, cause="exception")
    assert str(end_of(run)["error"]).isprintable(), f"control characters reach the reader: {end_of(run)['error']!r}"
    size = len(run.events_path.read_bytes().splitlines()[-1])
    assert size < 4096, f"the end event has {size} bytes"
    return f"an end event of {size} bytes"


@fault("rank 1 cannot import torch (a broken installation)", "failed: rank 1 before its first step; 0 left in 5 s")
def rank_fails_at_import(stage: Stage) -> str:
    return dies(stage, f"{IMPORTING} rank=1 do=raise:ImportError", "before its first step")


@fault("rank 1 is killed before it has written who it is", "failed: rank 1, SIGKILL, before its first step; 0 left")
def rank_killed_at_import(stage: Stage) -> str:
    return dies(
        stage, f"{IMPORTING} rank=1 do=kill:SIGKILL", "SIGKILL", "before its first step", cause=("signal", "memory")
    )


@fault(
    "rank 1 dies while the group meets", "failed in 10 s: rank 1 before its first step, not after the timeout; 0 left"
)
def rank_dies_joining(stage: Stage) -> str:
    began = time.monotonic()
    seen = dies(stage, f"{JOINING} rank=1 do=kill:SIGKILL", "SIGKILL", "before its first step")
    assert time.monotonic() - began < 40, f"told only after {time.monotonic() - began:.0f} s"
    return seen


@fault("rank 1 dies while it evaluates", "failed in 10 s: rank 1; 0 left")
def rank_dies_evaluating(stage: Stage) -> str:
    return dies(stage, f"{EVALUATING} rank=1 do=kill:SIGKILL", "SIGKILL")


@fault("rank 0 dies while it saves", "failed in 10 s: rank 0; no temporary file; 0 left")
def rank_dies_saving(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, f"{SAVING} rank=0 call=3 do=kill:SIGKILL")
    seen = expect.failed(stage, run, process, "SIGKILL", rank=0)
    expect.no_torso(run)
    return seen


@fault("rank 1 dies and rank 0 is deaf: a spinning SIGTERM handler", "failed: rank 1; rank 0 is killed; 0 left in 15 s")
def survivor_is_deaf(stage: Stage) -> str:
    order = f"{STEP} step=1 rank=0 do=deaf; {STEP} step=3 rank=1 do=raise"
    run = stage.new_run(DDP, LONG)
    return expect.failed(stage, run, stage.train(run, order), "sabotage", rank=1, seconds=120)


@fault("the process of a single run raises at step 3", "failed with type and words; exit code 1; 0 left")
def single_raises(stage: Stage) -> str:
    run = stage.new_run(LONG)
    return expect.failed(
        stage,
        run,
        stage.train(run, f"{STEP} step=3 do=raise:RuntimeError"),
        "RuntimeError",
        "sabotage",
        rank=0,
        cause="exception",
    )
