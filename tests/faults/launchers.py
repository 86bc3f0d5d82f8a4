"""Launchers that die, alone or over the heads of their ranks."""

import time

from tests.conftest import await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import DDP, IMPORTING, JOINING, LONG, STEP, Stage, end_of
from trainer.processes import wait_gone


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


@fault("the launcher is killed while rank 1 imports torch, which takes 30 s", "ranks gone in 5 s", quick=True)
def launcher_killed_at_import(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, f"{IMPORTING} rank=1 do=sleep:30")
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
    "rank 1 started a helper program (as torch.compile does) and is killed", "failed; the helper is gone, too, in 5 s"
)
def rank_leaves_a_child(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, f"{STEP} step=3 rank=1 do=child; {STEP} step=9 rank=1 do=kill:SIGKILL")
    await_true(lambda: process.poll() is not None, expect.START_UP, "the end of the run")
    return expect.failed(stage, run, process, "SIGKILL", rank=1)
