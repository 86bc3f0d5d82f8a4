"""Ranks and launchers that die, each in its own way."""

import os
import signal
import time

from tests.conftest import await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import DDP, EVALUATING, IMPORTING, JOINING, LONG, SAVING, STEP, Stage, end_of
from trainer.processes import wait_gone


def dies(stage: Stage, order: str, *words: str, rank: int | None = 1, cause: str | tuple[str, ...] = "") -> str:
    """A ddp run of two ranks under this sabotage fails with these words."""
    run = stage.new_run(DDP, LONG)
    return expect.failed(stage, run, stage.train(run, order), *words, rank=rank, cause=cause)


@fault("rank 1 of 2 raises ValueError at step 3", "failed in 5 s with rank, type, words and step; 0 left", quick=True)
def rank_raises(stage: Stage) -> str:
    order = f"{STEP} step=3 rank=1 do=raise:ValueError:out-of-cheese"
    return dies(stage, order, "Rank 1", "ValueError", "out-of-cheese", "step 3", cause="exception")


@fault("both ranks raise at the same step", "failed in 5 s, one of them is named; 0 left")
def both_ranks_raise(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 do=raise", "sabotage", rank=None, cause="exception")


@fault(
    "rank 1 is killed from outside, as the kernel does when memory runs out",
    "failed in 5 s: rank 1, SIGKILL, memory",
    quick=True,
)
def rank_killed(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run)
    stage.at_step(run)
    os.kill(stage.ranks(run, 2)[1][0], signal.SIGKILL)
    return expect.failed(stage, run, process, "Rank 1", "SIGKILL", "memory", rank=1, cause=("signal", "memory"))


@fault("rank 0, which writes events and checkpoints, is killed", "failed in 5 s: rank 0, SIGKILL; 0 left")
def rank_0_killed(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=0 do=kill:SIGKILL", "SIGKILL", rank=0, cause=("signal", "memory"))


@fault("rank 1 crashes in native code (SIGSEGV)", "failed in 5 s: rank 1, SIGSEGV; 0 left")
def rank_segfaults(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=kill:SIGSEGV", "SIGSEGV", cause="signal")


@fault("rank 1 aborts, as C++ does on an uncaught error", "failed in 5 s: rank 1, SIGABRT; 0 left")
def rank_aborts(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=kill:SIGABRT", "SIGABRT", cause="signal")


@fault("rank 1 is terminated from outside (SIGTERM to its pid only)", "failed in 5 s: rank 1, SIGTERM; 0 left")
def rank_terminated(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=kill:SIGTERM", "SIGTERM", cause="signal")


@fault("rank 1 ends with os._exit(7)", "failed in 5 s: rank 1, exit code 7; 0 left")
def rank_exits(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=exit:7", "exit code 7", cause="exit")


@fault("rank 1 leaves with os._exit(0), as if all was well", "failed in 5 s: rank 1 did not finish; 0 left")
def rank_exits_with_0(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=exit:0", cause="exit")


@fault("rank 1 calls sys.exit(0)", "failed in 5 s: rank 1, not the one that lost it; 0 left")
def rank_calls_sys_exit(stage: Stage) -> str:
    return dies(stage, f"{STEP} step=3 rank=1 do=raise:SystemExit:0", cause=("exit", "exception"))


@fault("KeyboardInterrupt rises in rank 1", "failed in 5 s: rank 1, though mp.spawn takes it for success; 0 left")
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
    "failed; `end` is one line of strict JSON under 4 kB",
)
def rank_error_is_hostile(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, f"{STEP} step=3 rank=1 do=raise:RuntimeError:hostile")
    expect.failed(stage, run, process, "RuntimeError", rank=1, cause="exception")
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
    "rank 1 dies while the group meets", "failed in 5 s: rank 1 before its first step, not after the timeout; 0 left"
)
def rank_dies_joining(stage: Stage) -> str:
    began = time.monotonic()
    seen = dies(stage, f"{JOINING} rank=1 do=kill:SIGKILL", "SIGKILL", "before its first step")
    assert time.monotonic() - began < 40, f"told only after {time.monotonic() - began:.0f} s"
    return seen


@fault("rank 1 dies while it evaluates", "failed in 5 s: rank 1; 0 left")
def rank_dies_evaluating(stage: Stage) -> str:
    return dies(stage, f"{EVALUATING} rank=1 do=kill:SIGKILL", "SIGKILL")


@fault("rank 0 dies while it saves", "failed in 5 s: rank 0; no temporary file; 0 left")
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


@fault("the process of a single run raises at step 3", "failed with type and words; exit code 1; 0 left", quick=True)
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


def leaves(stage: Stage, order: str) -> str:
    """A single run whose process goes without a word is never taken for a good one."""
    run = stage.new_run(LONG)
    process = stage.train(run, order)
    process.wait(expect.START_UP)
    stage.gone(2)
    status = run.state().status
    assert status in ("failed", "interrupted"), f"taken for {status}"
    return f"{status}, exit code {process.returncode}: {run.state().error}"


@fault("the process of a single run is killed", "interrupted, with the reason in words; 0 left", quick=True)
def single_killed(stage: Stage) -> str:
    return leaves(stage, f"{STEP} step=3 do=kill:SIGKILL")


@fault("the process of a single run leaves with os._exit(0)", "interrupted or failed, never completed; 0 left")
def single_exits_with_0(stage: Stage) -> str:
    return leaves(stage, f"{STEP} step=3 do=exit:0")


@fault("sys.exit(0) is called within a single run", "failed; exit code not 0; 0 left")
def single_calls_sys_exit(stage: Stage) -> str:
    seen = leaves(stage, f"{STEP} step=3 do=raise:SystemExit:0")
    assert "exit code 0" not in seen, seen
    return seen


def orphaned(stage: Stage, order: str = "", *, silent: bool = False) -> str:
    """The launcher of a ddp run is killed; its ranks are gone in 5 s."""
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, order)
    if silent:
        ranks = stage.ranks(run, 2)
        time.sleep(2)  # nothing more will be written: let the others get to where they wait for the one
    else:
        stage.at_step(run, 2)
        ranks = stage.ranks(run, 2)
        if order:
            time.sleep(1)  # the same
    process.kill()
    began = time.monotonic()
    left = wait_gone(ranks, 5)
    assert not left, f"{len(left)} ranks still there 5 s after their launcher: {', '.join(stage.describe(left))}"
    took = time.monotonic() - began
    stage.gone(2)
    process.wait(5)
    assert run.state().status == "interrupted", run.state().status
    return f"ranks gone in {took:.1f} s"


@fault("the launcher is killed between steps", "its ranks are gone in 5 s; interrupted", quick=True)
def launcher_killed(stage: Stage) -> str:
    return orphaned(stage)


@fault("the launcher is killed while rank 0 waits in a collective for rank 1, which sleeps", "ranks gone in 5 s")
def launcher_killed_in_a_collective(stage: Stage) -> str:
    return orphaned(stage, f"{STEP} step=3 rank=1 do=sleep")


@fault("the launcher is killed while rank 1 hangs in native code that holds the interpreter", "ranks gone in 5 s")
def launcher_killed_rank_holds_interpreter(stage: Stage) -> str:
    return orphaned(stage, f"{STEP} step=3 rank=1 do=hold")


@fault("the launcher is killed while rank 1 is frozen (SIGSTOP)", "ranks gone in 5 s")
def launcher_killed_rank_frozen(stage: Stage) -> str:
    return orphaned(stage, f"{STEP} step=3 rank=1 do=kill:SIGSTOP")


@fault("the launcher is killed while the ranks meet", "ranks gone in 5 s")
def launcher_killed_joining(stage: Stage) -> str:
    return orphaned(stage, f"{JOINING} rank=1 do=sleep", silent=True)


@fault("the launcher is killed while its ranks import torch", "ranks gone in 5 s")
def launcher_killed_at_import(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, f"{IMPORTING} rank=1 do=sleep")
    stage.ranks(run, 1)  # rank 0 is there, so rank 1 is in its import
    process.kill()
    took = stage.gone(5)
    return f"gone in {took:.1f} s"


@fault("the launcher is killed in the moment that a rank fails", "ranks gone in 5 s; not completed")
def launcher_and_rank_die_together(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, f"{STEP} step=3 rank=1 do=kill:SIGKILL")
    stage.at_step(run, 2)
    process.kill()
    stage.gone(5)
    assert run.state().status in ("interrupted", "failed"), run.state().status
    return f"{run.state().status}, {end_of(run) or 'no end event'}"


@fault(
    "rank 1 started a helper program (as a loader worker is) and is killed", "failed; the helper is gone, too, in 5 s"
)
def rank_leaves_a_child(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, f"{STEP} step=3 rank=1 do=child; {STEP} step=9 rank=1 do=kill:SIGKILL")
    await_true(lambda: process.poll() is not None, expect.START_UP, "the end of the run")
    return expect.failed(stage, run, process, "SIGKILL", rank=1)
