"""Runs that wait for their turn: never two at work, none lost, none started twice."""

import fcntl
import signal
import sys
import time
from itertools import pairwise
from subprocess import PIPE

from tests.conftest import await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import DDP, LONG, STEP, Stage, end_of, events
from trainer.processes import alive
from trainer.runs import Run

QUICK = {"epochs": 1, "max_steps": 3}
TURN = 60.0  # seconds in which the next one has begun, torch's import included
WAIT = 6.0  # in which one that does not wait for its turn would have begun


def begun(run: Run) -> int:
    return len(events(run, "start"))


def is_over(run: Run) -> bool:
    return run.state().status in ("completed", "stopped", "failed", "diverged", "interrupted")


def one_at_a_time(runs: list[Run]) -> None:
    """Each run began once, and no two of them were at work at the same time."""
    for run in runs:
        assert begun(run) == 1, f"{run.id} began {begun(run)} times"
    spans = sorted((events(run, "start")[0]["time"], end_of(run)["time"]) for run in runs)
    for (_, end), (start, _) in pairwise(spans):
        assert start >= end - 0.05, f"two runs at work at once: one began {end - start:.1f} s before another ended"


def at_work_and_waiting(stage: Stage):
    """A run at work, and one that was started behind it."""
    first, second = stage.new_run(LONG), stage.new_run(QUICK)
    one = stage.train(first)
    stage.at_step(first)
    two = stage.train(second)
    time.sleep(WAIT)
    assert not begun(second), "the second began while the first was at work"
    assert two.poll() is None, f"the second did not wait: exit code {two.returncode}"
    assert second.state().status == "queued", f"the second is {second.state().status}"
    return first, one, second, two


@fault("a second run is started while one trains", "queued; begins when the first is stopped; both told", quick=True)
def second_run_waits(stage: Stage) -> str:
    first, _, second, two = at_work_and_waiting(stage)
    stage.trainer("stop", first.path)
    expect.completed(stage, second, two)
    one_at_a_time([first, second])
    return "waited, then completed"


@fault("the run at work is killed while another waits", "the one that waits begins", quick=False)
def first_run_killed(stage: Stage) -> str:
    first, one, second, two = at_work_and_waiting(stage)
    one.kill()
    one.wait(5)
    began = time.monotonic()
    await_true(lambda: begun(second), TURN, "the begin of the second")
    took = time.monotonic() - began
    expect.completed(stage, second, two)
    return f"began {took:.1f} s later; the first is {first.state().status}"


@fault("Stop of a run that waits", "stopped, never begun, its process gone in 10 s; the one at work trains on")
def stop_of_a_queued_run(stage: Stage) -> str:
    first, _, second, two = at_work_and_waiting(stage)
    done = stage.trainer("stop", second.path)
    assert done.returncode == 0, done.stderr
    two.wait(10)
    assert second.state().status == "stopped", second.state().status
    assert not begun(second)
    expect.goes_on(stage, first)
    stage.trainer("stop", first.path)
    return f"stopped, exit code {two.returncode}"


@fault("the directory of a run that waits is removed", "its process ends in 10 s in a sentence; the other trains on")
def queued_run_removed(stage: Stage) -> str:
    first, _, second, two = at_work_and_waiting(stage)
    second.delete()
    two.wait(10)
    assert not second.path.exists(), "it was made anew"
    expect.goes_on(stage, first)
    stage.trainer("stop", first.path)
    return f"exit code {two.returncode}"


@fault("Ctrl-C in the shell of a run that waits", "gone in 5 s, never begun; the one at work trains on")
def ctrl_c_while_waiting(stage: Stage) -> str:
    first, _, second, two = at_work_and_waiting(stage)
    two.send_signal(2)
    two.wait(5)
    assert not begun(second)
    expect.goes_on(stage, first)
    stage.trainer("stop", first.path)
    return f"{second.state().status}, exit code {two.returncode}"


@fault("the second of three is killed (SIGKILL) while it waits", "the third begins when the first has ended")
def waiting_process_killed(stage: Stage) -> str:
    first, _, _, two = at_work_and_waiting(stage)
    third = stage.new_run(QUICK)
    three = stage.train(third)
    time.sleep(3)
    two.kill()
    stage.trainer("stop", first.path)
    await_true(lambda: is_over(third), 120, "the end of the third")
    three.wait(20)
    return f"the third is {third.state().status}"


@fault("the config.json of the run at the head of the queue is damaged while it waits", "those behind it begin")
def head_of_the_queue_damaged(stage: Stage) -> str:
    first, _, second, two = at_work_and_waiting(stage)
    third = stage.new_run(QUICK)
    three = stage.train(third)
    path = second.path / "config.json"
    path.write_text(path.read_text()[:50])
    time.sleep(3)
    stage.trainer("stop", first.path)
    seen = expect.told(third, three, 120)
    two.wait(30)
    return f"the third {seen['status']}; the damaged one ended with exit code {two.returncode}"


@fault("one run is started by three shells at once", "it begins once; the others are refused in a sentence", quick=True)
def one_run_three_shells(stage: Stage) -> str:
    run = stage.new_run(QUICK)
    shells = [stage.train(run, stderr=PIPE, text=True) for _ in range(3)]
    said = [shell.communicate(timeout=120)[1] for shell in shells]
    codes = sorted(shell.returncode for shell in shells)
    assert codes == [0, 2, 2], f"exit codes {codes}"
    assert not any("Traceback" in text for text in said), said
    one_at_a_time([run])
    return f"began once; exit codes {codes}"


@fault("an ended run is resumed by four shells at once", "it goes on once; the others are refused; no traceback")
def four_resumes(stage: Stage) -> str:
    run = stage.new_run(epochs=1)
    expect.completed(stage, run, stage.train(run))
    argv = (sys.executable, "-m", "trainer", "resume", run.path, "--epochs", 2)
    shells = [stage.program(*argv, stderr=PIPE, text=True) for _ in range(4)]
    said = [shell.communicate(timeout=120)[1] for shell in shells]
    codes = sorted(shell.returncode for shell in shells)
    assert not any("Traceback" in text for text in said), [text[-300:] for text in said]
    assert begun(run) == 2, f"began {begun(run)} times, exit codes {codes}"
    assert codes == [0, 2, 2, 2], f"exit codes {codes}: {said}"
    assert run.state().status == "completed", run.state().status
    return f"went on once; exit codes {codes}"


@fault("five runs are started by five shells at the same moment", "one after the other, each once; all complete")
def five_shells(stage: Stage) -> str:
    runs = [stage.new_run(QUICK) for _ in range(5)]
    shells = [stage.train(run) for run in runs]
    for run, shell in zip(runs, shells, strict=True):
        expect.told(run, shell, 240)
    one_at_a_time(runs)
    return "five completed, one after the other"


@fault("a queued run asks for a GPU that is not there any more", "failed in a sentence; the one behind it completes")
def queued_run_cannot_be_placed(stage: Stage) -> str:
    bad, good = stage.new_run(QUICK, devices="7"), stage.new_run(QUICK)
    one, two = stage.train(bad), stage.train(good)
    one.wait(expect.START_UP)
    seen = expect.completed(stage, good, two)
    assert bad.state().status == "failed", bad.state().status
    assert "GPU 7" in end_of(bad)["error"]
    return f"{end_of(bad)['error']}; the other {seen}"


@fault(
    "the second of three is suspended (Ctrl-Z) while it waits", "the third is not held up: it begins after the first"
)
def waiting_process_suspended(stage: Stage) -> str:
    first, _, second, two = at_work_and_waiting(stage)
    third = stage.new_run(QUICK)
    three = stage.train(third)
    time.sleep(3)
    two.send_signal(signal.SIGSTOP)
    try:
        stage.trainer("stop", first.path)
        await_true(lambda: is_over(third), TURN, "the end of the third")
    finally:
        two.send_signal(signal.SIGCONT)
    two.wait(TURN)
    three.wait(20)
    return f"the third is {third.state().status}, the second {second.state().status}"


@fault(
    "the launcher at work is killed, a rank of it is frozen and lives on, and another run waits",
    "the frozen one is ended before the other begins",
)
def frozen_rank_of_a_dead_run(stage: Stage) -> str:
    first, second = stage.new_run(LONG, DDP), stage.new_run(QUICK)
    one = stage.train(first, f"{STEP} step=3 rank=1 do=kill:SIGSTOP")
    stage.at_step(first, 2)
    time.sleep(1)
    two = stage.train(second)
    time.sleep(3)
    one.kill()
    one.wait(5)
    await_true(lambda: begun(second), TURN, "the begin of the second")
    left = [known for known in first.rank_identities() if alive(known)]
    assert not left, f"two runs hold one device: {', '.join(stage.describe(left))}"
    return expect.completed(stage, second, two)


@fault(
    "a program that is frozen holds the lock of the runs directory", "`list` and Stop of the run at work do not wait"
)
def lock_is_held(stage: Stage) -> str:
    run = stage.new_run(LONG)
    stage.train(run)
    stage.at_step(run)
    with (stage.runs_dir / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        listed = stage.trainer("list", "--runs-dir", stage.runs_dir, timeout=20)
        assert run.id in listed.stdout, listed.stderr
        began = time.monotonic()
        stage.trainer("stop", run.path, timeout=20)
        return expect.stopped(stage, run, began, 13)
