"""Checkpoints that are torn, damaged, foreign or hostile, and numbers that leave the finite."""

import hashlib
import pickle
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.kills import EPOCHS, is_bit_equal, kill_many
from tests.faults.stage import DDP, LONG, SAVING, STEP, Stage, end_of, events
from trainer import checkpoint
from trainer.runs import Run


def trained(stage: Stage, **settings: Any) -> Run:
    run = stage.new_run(settings, epochs=settings.pop("epochs", 1))
    expect.completed(stage, run, stage.train(run))
    return run


def spoil(path: Path, shared: bool = True) -> None:
    """Flip one bit in the middle; in all names of the file, as a bad sector would, or in this one only."""
    if not shared:
        copy = path.with_name("copy")
        shutil.copyfile(path, copy)
        copy.replace(path)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def kills(stage: Stage, mode: str, number: int, check: int, epochs: int = EPOCHS) -> str:
    tally = kill_many(stage, mode, number, check, epochs=epochs)
    assert not tally.problems, f"{tally}: {tally.problems}"
    return str(tally)


@fault("2 kills at random moments of a run, each resumed", "last.pt always loads; completed; bit-equal")
def two_kills(stage: Stage) -> str:
    return kills(stage, "single", 2, 1, epochs=8)


@fault("50 kills at random moments, half of them while saving, single", "50 of 50 resume; bit-equal; 0 left")
def fifty_kills(stage: Stage) -> str:
    return kills(stage, "single", 50, 5)


@fault("15 kills of the launcher at random moments, ddp", "15 of 15 resume; bit-equal; 0 left in 5 s")
def kills_of_ddp(stage: Stage) -> str:
    return kills(stage, "ddp", 15, 2)


@fault(
    "killed between writing a checkpoint and putting it in place",
    "the one before loads; its torso goes; resumed",
    quick=True,
)
def killed_before_replacing(stage: Stage) -> str:
    run = stage.new_run(epochs=4)
    stage.train(run, f"{SAVING} call=5 do=kill:SIGKILL").wait(expect.START_UP)
    step = checkpoint.load(run.checkpoint_path("last"))["step"]
    done = stage.trainer("resume", run.path)
    assert done.returncode == 0, done.stderr
    expect.no_torso(run)
    return f"last.pt of step {step} loads; resumed and completed"


@fault(
    "killed after its last epoch: before that is saved, and before the end is written",
    "interrupted; resumed without more epochs; completed; bit-equal",
    quick=True,
)
def killed_in_its_last_moment(stage: Stage) -> str:
    whole = trained(stage, epochs=2)
    for moment in ("trainer.loop:save call=2", "trainer.launch:write_end"):
        run = stage.new_run(epochs=2)
        stage.train(run, f"at={moment} do=kill:SIGKILL").wait(expect.START_UP)
        assert run.state().status == "interrupted", f"{moment}: {run.state().status}"
        assert run.state().epoch == 2, f"{moment}: epoch {run.state().epoch}"
        done = stage.trainer("resume", run.path)
        assert done.returncode == 0, f"{moment}: {done.stderr}"
        assert run.state().status == "completed", f"{moment}: {run.state().status}"
        assert is_bit_equal(whole, run), f"{moment}: not bit-equal"
    return "resumed, completed and bit-equal both times"


@fault("any bit of a checkpoint flipped, at 100 places", "100 of 100 are refused, naming the file")
def flipped_bits(stage: Stage) -> str:
    path = trained(stage).checkpoint_path("last")
    draw, size = random.Random(0), path.stat().st_size
    for _ in range(100):
        place, bit = draw.randrange(size), 1 << draw.randrange(8)
        with path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ bit]))
            file.flush()
            assert path.name in refusal(path), f"bit {bit} of byte {place} was not missed"
            file.seek(place)
            file.write(bytes([byte]))
    checkpoint.load(path)
    return "100 of 100 refused"


def refusal(path: Path) -> str:
    """Why a checkpoint is not loaded; "" if it is."""
    try:
        checkpoint.load(path)
    except checkpoint.CheckpointError as error:
        return str(error)
    return ""


class Payload:
    """Runs a command when it is unpickled by who trusts it."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@fault(
    "best.pt is empty, cut, a text, a folder, of another network, or a pickle that runs a program",
    "each time one sentence that names the file; no program ran; no traceback",
)
def foreign_checkpoints(stage: Stage) -> str:
    run, marker = trained(stage), stage.directory / "marker"
    path = run.checkpoint_path("best")
    good = path.read_bytes()
    state = checkpoint.load(path)
    state["model"] = {"weight": torch.zeros(2)}
    kinds: dict[str, Any] = {
        "empty": lambda: path.write_bytes(b""),
        "cut": lambda: path.write_bytes(good[: len(good) // 2]),
        "text": lambda: path.write_text("epoch 3, loss 0.5"),
        "folder": path.mkdir,
        "other network": lambda: checkpoint.save(path, state),
        "pickle": lambda: path.write_bytes(pickle.dumps(Payload(marker))),
        "torch pickle": lambda: torch.save({"model": Payload(marker)}, path),
    }
    picture = next(stage.pictures.rglob("*.png"))
    for kind, make in kinds.items():
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        make()
        if "pickle" in kind:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            checkpoint.hash_path(path).write_text(f"{digest}  {path.name}\n")
        done = stage.trainer("predict", run.path, picture)
        assert done.returncode == 1, f"{kind}: exit code {done.returncode}, {done.stderr}"
        assert "best.pt" in done.stderr, f"{kind}: {done.stderr}"
        assert "Traceback" not in done.stderr, f"{kind}: {done.stderr[-300:]}"
        assert not marker.exists(), f"{kind}: the program ran"
    return f"{len(kinds)} kinds refused in a sentence each"


def resumed_after_damage(stage: Stage, *names: str, shared: bool = True) -> str:
    """A run of two epochs whose checkpoints of these names are damaged goes on to a third one."""
    run = trained(stage, epochs=2)
    for name in names:
        path = run.path / name
        assert path.exists(), f"there is no {name}"
        spoil(path, shared)
    done = stage.trainer("resume", run.path, "--epochs", 3)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-200:] or expect.last_words(run)}"
    text = expect.warned(run, "last.pt")
    begun = events(run, "start")[-1]["step"]
    assert begun > 0, "it began anew"
    assert run.state().status == "completed"
    expect.no_torso(run)
    return f"went on from step {begun} of 12: {text}"


@fault("last.pt is damaged and the run is resumed", "goes on from the one before, at most one epoch older; a warning")
def last_damaged(stage: Stage) -> str:
    return resumed_after_damage(stage, "last.pt")


@fault("last.pt and previous.pt are damaged and the run is resumed", "goes on from best.pt; a warning")
def last_and_previous_damaged(stage: Stage) -> str:
    return resumed_after_damage(stage, "last.pt", "previous.pt", shared=False)


@fault("the hash beside last.pt is lost (a copy of the directory without it)", "goes on from another; a warning")
def hash_lost(stage: Stage) -> str:
    run = trained(stage, epochs=2)
    checkpoint.hash_path(run.checkpoint_path("last")).unlink()
    done = stage.trainer("resume", run.path, "--epochs", 3)
    assert done.returncode == 0, f"exit code {done.returncode}: {expect.last_words(run)}"
    return expect.warned(run, "last.pt")


@fault("every checkpoint is damaged and the run is resumed", "failed, cause checkpoint, the file named; nothing lost")
def all_damaged(stage: Stage) -> str:
    run = trained(stage, epochs=2)
    for path in run.path.glob("*.pt"):
        spoil(path, shared=False)  # a second flip in a file of two names would undo the first
    process = stage.program(sys.executable, "-m", "trainer", "resume", run.path, "--epochs", "3")
    return expect.failed(stage, run, process, "last.pt", cause="checkpoint")


@fault("both ranks of a ddp run find last.pt damaged", "both go on from the same other checkpoint; completed")
def damaged_for_both_ranks(stage: Stage) -> str:
    run = stage.new_run(DDP, epochs=2)
    expect.completed(stage, run, stage.train(run))
    spoil(run.checkpoint_path("last"))
    done = stage.trainer("resume", run.path, "--epochs", 3)
    assert done.returncode == 0, expect.last_words(run)
    return expect.warned(run, "last.pt")


def killed_and_resumed(stage: Stage, **settings: Any) -> str:
    """Killed in epoch 3 of 4 and resumed, a run is bit-equal to the unbroken one."""
    whole = stage.new_run(settings, epochs=4)
    expect.completed(stage, whole, stage.train(whole))
    broken = stage.new_run(settings, epochs=4)  # only now: what waits is started when another run ends
    rank = "rank=0" if settings else "rank=launcher"
    stage.train(broken, f"{STEP} step=15 {rank} do=kill:SIGKILL").wait(expect.START_UP)
    stage.gone(5)
    done = stage.trainer("resume", broken.path)
    assert done.returncode == 0, done.stderr
    assert is_bit_equal(whole, broken), "the weights differ"
    return f"resumed at step {events(broken, 'start')[-1]['step']}, bit-equal"


@fault("killed in epoch 3 of 4 and resumed, single", "weights and momentum bit-equal to the unbroken run")
def resumed_single(stage: Stage) -> str:
    return killed_and_resumed(stage)


@fault("killed in epoch 3 of 4 and resumed, ddp", "weights and momentum bit-equal to the unbroken run")
def resumed_ddp(stage: Stage) -> str:
    return killed_and_resumed(stage, **DDP)


@fault(
    "a learning rate of 1e6: the loss leaves the numbers, ddp", "diverged, strict JSON; the last finite weights load"
)
def loss_diverges(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG, lr=1e6)
    process = stage.train(run)
    end = expect.told(run, process)
    assert end["status"] == "diverged", end
    assert process.returncode == 1
    steps = {record["step"] for record in run.rank_records()}
    assert len(steps) == 1, f"the ranks stopped at steps {steps}"
    path = run.checkpoint_path("last")
    if path.exists():
        values = checkpoint.load(path)["model"].values()
        assert all(bool(torch.isfinite(value).all()) for value in values)
    assert end_of(run).get("cause") == "nonfinite", end
    return f"{end['error']}; all ranks at step {steps.pop()}"
