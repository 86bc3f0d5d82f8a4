"""Kill a run again and again, resume it, and compare what it becomes with the run that was left alone.

python -m tests.faults.kills --mode single|ddp [--kills 50] [--check 5] [--seed 0]
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.faults import expect
from tests.faults.stage import DDP, Stage, events
from trainer import checkpoint
from trainer.runs import Run

KILLS_A_RUN = 5  # then it is left to complete
LONGEST = {"single": 7.0, "ddp": 12.0}  # seconds from a start to the kill: start-up, training and saving all get theirs
EPOCHS = 24  # of 6 steps each, so half of the time is spent saving


@dataclass
class Tally:
    kills: int = 0
    resumes: int = 0
    completed: int = 0
    compared: int = 0
    bit_equal: int = 0
    slowest: float = 0.0  # seconds from a kill to the last process gone
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, nothing left after {self.slowest:.1f} s at most; {self.resumes} resumes; "
            f"{self.completed} runs completed; {self.bit_equal} of {self.compared} compared are bit-equal; "
            f"{len(self.problems)} problems"
        )


def is_bit_equal(one: Run, other: Run) -> bool:
    """Weights and the optimizer's momentum."""
    states = [checkpoint.load(run.checkpoint_path("last")) for run in (one, other)]
    momenta = [[s["momentum_buffer"] for s in state["optimizer"]["state"].values()] for state in states]
    same_weights = all(map(torch.equal, states[0]["model"].values(), states[1]["model"].values()))
    return bool(momenta[0]) and same_weights and all(map(torch.equal, *momenta))


def check_last(run: Run) -> None:
    """What a killed run left: last.pt is whole, and as new as it was said to be."""
    said = max((event["step"] for event in events(run, "checkpoint")), default=0)
    if said:
        step = checkpoint.load(run.checkpoint_path("last"))["step"]
        assert step >= said, f"last.pt is of step {step}, and step {said} was said to be saved"


def kill_once(stage: Stage, run: Run, moment: float, tally: Tally) -> None:
    """Start or resume the run and kill its launcher after `moment` seconds, unless it is done by then."""
    resumes = run.has_claim
    argv = ("resume", run.path) if resumes else ("train", "--run", run.path)
    process = stage.program(sys.executable, "-m", "trainer", *argv)
    time.sleep(moment)
    if process.poll() is not None:
        assert process.returncode == 0, f"{argv[0]} ended with exit code {process.returncode}: {expect.last_words(run)}"
        return
    process.kill()
    process.wait(5)
    tally.kills += 1
    tally.resumes += resumes
    tally.slowest = max(tally.slowest, stage.gone(5))
    check_last(run)


def chain(stage: Stage, run: Run, kills: int, draw: random.Random, longest: float, tally: Tally) -> None:
    """Kill a run so many times, then let it complete."""
    for _ in range(kills):
        kill_once(stage, run, draw.uniform(0, longest), tally)
        if run.state().status == "completed":
            break
    if run.state().status != "completed":
        argv = ("resume", run.path) if run.has_claim else ("train", "--run", run.path)
        tally.resumes += run.has_claim
        done = stage.trainer(*argv, timeout=150)
        assert done.returncode == 0, done.stderr[-300:] or expect.last_words(run)
    assert run.state().status == "completed", run.state().status
    expect.no_torso(run)
    tally.completed += 1


def kill_many(stage: Stage, mode: str, kills: int, check: int, seed: int = 0, epochs: int = EPOCHS) -> Tally:
    """So many kills over as many runs as that takes; the first `check` runs are compared with an unbroken one."""
    kind = DDP if mode == "ddp" else {}
    draw, tally = random.Random(seed), Tally()
    unbroken = stage.new_run(kind, epochs=epochs)
    if check:
        expect.completed(stage, unbroken, stage.train(unbroken))
    while tally.kills < kills:
        run = stage.new_run(kind, epochs=epochs)
        try:
            chain(stage, run, min(KILLS_A_RUN, kills - tally.kills), draw, LONGEST[mode], tally)
            if tally.compared < check:
                tally.compared += 1
                tally.bit_equal += is_bit_equal(unbroken, run)
        except (AssertionError, ValueError) as error:
            tally.problems.append(f"after {tally.kills} kills, {run.id}: {error}")
            if len(tally.problems) > 5:
                break
        shutil.rmtree(run.path, ignore_errors=True)
    if tally.bit_equal < tally.compared:
        tally.problems.append("a resumed run is not bit-equal to the unbroken one")
    return tally


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mode", choices=sorted(LONGEST), default="single")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--check", type=int, default=5, metavar="N", help="compare N of the runs bit by bit")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    directory = Path(tempfile.mkdtemp(prefix="kills-"))
    stage = Stage(directory)
    try:
        tally = kill_many(stage, arguments.mode, arguments.kills, arguments.check, arguments.seed)
    finally:
        with suppress(OSError):
            stage.close()
        shutil.rmtree(directory, ignore_errors=True)
    for problem in tally.problems:
        print(problem)
    print(f"{arguments.mode}: {tally}")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
