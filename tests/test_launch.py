"""Whole runs as real processes: the modes train the same, a rerun and a resumed run are bit-equal, faults are told.

pytest tests/test_launch.py
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from tests.conftest import ROOT, await_true
from trainer import checkpoint
from trainer.config import TrainConfig
from trainer.events import read_events
from trainer.processes import alive
from trainer.runs import Run

NUM_TEST = 25
SMALL = TrainConfig(
    dataset="images",
    epochs=2,
    batch_size=12,
    lr=0.05,
    augment="crop_flip_cutout",
    log_every=1,
    seed=3,
    precision="fp32",
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """61 training pictures, so the last batch of 12 holds a single one, and 25 test pictures, of three classes."""
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for part, count in (("train", 61), ("test", NUM_TEST)):
        for index in range(count):
            folder = root / part / "abc"[index % 3]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            pixels[:, :, index % 3] |= 128
            Image.fromarray(pixels).save(folder / f"{index:03}.png")
    return root


def new_run(runs_dir: Path, pictures: Path, **changes) -> Run:
    return Run.create(runs_dir, SMALL.changed(data_dir=str(pictures), **changes))


def train(run: Run, *program: str) -> None:
    """Train a run to its end in a process of its own; show its output if it does not complete."""
    argv = [sys.executable, *(program or ("-m", "trainer", "train", "--run")), str(run.path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert run.state().status == "completed", done.stdout + done.stderr


def weights(run: Run) -> dict[str, torch.Tensor]:
    return checkpoint.load(run.checkpoint_path("last"))["model"]


def largest_difference(one: Run, other: Run) -> float:
    pairs = zip(weights(one).values(), weights(other).values(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def is_bit_equal(one: Run, other: Run) -> bool:
    """Weights and the optimizer's momentum."""
    states = [checkpoint.load(run.checkpoint_path("last")) for run in (one, other)]
    momenta = [[s["momentum_buffer"] for s in state["optimizer"]["state"].values()] for state in states]
    assert momenta[0]
    same_weights = all(map(torch.equal, states[0]["model"].values(), states[1]["model"].values()))
    return same_weights and all(map(torch.equal, *momenta))


def events(run: Run, kind: str) -> list[dict]:
    return [event for event in read_events(run.events_path) if event["kind"] == kind]


@pytest.mark.parametrize("processes", [2, 3])
def test_ddp_trains_like_one_process_also_on_a_batch_smaller_than_the_group(runs_dir, pictures, processes):
    program = str(ROOT / "tests" / "programs" / "double_precision.py")
    single = new_run(runs_dir, pictures)
    ddp = new_run(runs_dir, pictures, parallel="ddp", processes=processes)
    train(single, program)
    train(ddp, program)
    assert weights(single)["fc1.weight"].dtype == torch.float64
    assert largest_difference(single, ddp) <= 1e-12
    for ours, theirs in zip(events(single, "step"), events(ddp, "step"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-12)
        assert ours["accuracy"] == theirs["accuracy"]
    assert [e["count"] for e in events(ddp, "eval")] == [NUM_TEST, NUM_TEST]
    assert [e["accuracy"] for e in events(single, "eval")] == [e["accuracy"] for e in events(ddp, "eval")]


def test_another_seed_trains_another_network(runs_dir, pictures):
    one, other = new_run(runs_dir, pictures), new_run(runs_dir, pictures, seed=4)
    train(one)
    train(other)
    assert largest_difference(one, other) > 1e-3


@pytest.mark.parametrize("mode", [{"parallel": "single"}, {"parallel": "ddp", "processes": 2}], ids=["single", "ddp"])
def test_a_rerun_and_a_resumed_run_are_bit_equal_to_the_unbroken_one(runs_dir, pictures, trainer, mode):
    unbroken, again, resumed = (new_run(runs_dir, pictures, epochs=e, **mode) for e in (2, 2, 1))
    train(unbroken)
    train(again)
    assert is_bit_equal(unbroken, again)
    train(resumed)
    assert not is_bit_equal(unbroken, resumed)
    done = trainer("resume", resumed.id, "--epochs", "2", "--runs-dir", str(runs_dir))
    assert done.returncode == 0, done.stderr
    assert is_bit_equal(unbroken, resumed)
    assert events(unbroken, "eval")[-1]["loss"] == events(resumed, "eval")[-1]["loss"]
    assert events(resumed, "start")[-1]["step"] == 6


def test_a_run_stopped_within_an_epoch_goes_on_bit_equal(runs_dir, pictures, trainer):
    settings = {"epochs": 4, "schedule": "cosine", "warmup": 1.0, "batch_size": 4}
    unbroken, stopped = new_run(runs_dir, pictures, **settings), new_run(runs_dir, pictures, **settings)
    train(unbroken)
    command = [sys.executable, "-m", "trainer", "train", "--run", str(stopped.path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    await_true(lambda: len(events(stopped, "step")) >= 20, what="20 steps")
    stopped.ask_to_stop()
    assert process.wait(60) == 0
    assert stopped.state().status == "stopped"
    assert 0 < checkpoint.load(stopped.checkpoint_path("last"))["step"] < 64
    assert trainer("resume", str(stopped.path)).returncode == 0
    assert is_bit_equal(unbroken, stopped)


@pytest.mark.parametrize("first", [{"parallel": "single"}, {"parallel": "dp"}, {"parallel": "ddp", "processes": 2}])
def test_a_checkpoint_of_any_mode_goes_on_in_the_others(runs_dir, pictures, first):
    modes = ({"parallel": "single"}, {"parallel": "dp"}, {"parallel": "ddp", "processes": 2})
    run = new_run(runs_dir, pictures, epochs=1, **first)
    train(run)
    epochs = 1
    for mode in (mode for mode in modes if mode != first):
        epochs += 1
        run.write_config(run.config().changed(epochs=epochs, **mode))
        run.prepare_resume()
        train(run)
    state = checkpoint.load(run.checkpoint_path("last"))
    assert state["epoch"] == 3
    assert not [key for key in state["model"] if key.startswith("module.")]


def test_dp_without_gpus_says_that_it_is_one_device_and_trains_the_same(runs_dir, pictures):
    single, dp = new_run(runs_dir, pictures), new_run(runs_dir, pictures, parallel="dp")
    train(single)
    train(dp)
    assert any("DataParallel" in event["text"] for event in events(dp, "warning"))
    assert is_bit_equal(single, dp)


def test_batchnorm_networks_train_evaluate_and_save_what_was_evaluated_in_ddp(runs_dir, pictures, trainer):
    run = new_run(runs_dir, pictures, model="resnet9", parallel="ddp", processes=2, epochs=1)
    train(run)
    done = trainer("evaluate", str(run.path), "--checkpoint", "last", "--json")
    result = json.loads(done.stdout)
    last = events(run, "eval")[-1]
    assert result["count"] == last["count"] == NUM_TEST
    assert result["accuracy"] == last["accuracy"]
    assert result["loss"] == pytest.approx(last["loss"], rel=1e-5)


def start(run: Run) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", "train", "--run", str(run.path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def ended(process: subprocess.Popen, run: Run) -> dict:
    """The run's `end` event, with no process of it left."""
    process.wait(60)
    assert not [known for known in run.rank_identities() if alive(known)]
    return events(run, "end")[-1]


def test_a_killed_rank_is_reported_with_its_rank_and_signal(runs_dir, pictures):
    run = new_run(runs_dir, pictures, parallel="ddp", processes=2, epochs=1000)
    process = start(run)
    await_true(lambda: events(run, "step"), what="the first step")
    os.kill(run.rank_records()[1]["pid"], signal.SIGKILL)
    end = ended(process, run)
    assert process.returncode == 1
    assert (end["status"], end["rank"]) == ("failed", 1)
    assert "SIGKILL" in end["error"]
    assert run.state().status == "failed"


def test_ranks_leave_when_their_launcher_is_killed(runs_dir, pictures):
    run = new_run(runs_dir, pictures, parallel="ddp", processes=2, epochs=1000)
    process = start(run)
    await_true(lambda: events(run, "step"), what="the first step")
    process.kill()
    process.wait(10)
    await_true(lambda: not any(map(alive, run.rank_identities())), 30, "the end of the ranks")
    assert run.state().status == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mode", [{"parallel": "single"}, {"parallel": "ddp", "processes": 2}], ids=["single", "ddp"])
def test_a_signal_to_the_launcher_stops_the_run_with_a_checkpoint(runs_dir, pictures, mode, number):
    run = new_run(runs_dir, pictures, epochs=1000, **mode)
    process = start(run)
    await_true(lambda: events(run, "step"), what="the first step")
    process.send_signal(number)
    end = ended(process, run)
    assert end["status"] == "stopped"
    assert checkpoint.load(run.checkpoint_path("last"))["step"] == end["step"] > 0


def test_a_loss_that_leaves_the_numbers_ends_the_run_as_diverged_with_the_last_finite_checkpoint(runs_dir, pictures):
    run = new_run(runs_dir, pictures, epochs=1)
    train(run)
    good = weights(run)
    run.write_config(run.config().changed(lr=1e6, epochs=50))
    run.prepare_resume()
    process = start(run)
    end = ended(process, run)
    assert end["status"] == "diverged"
    assert "learning rate" in end["error"]
    assert events(run, "step")[-1]["loss"] is None
    assert events(run, "step")[-1]["nonfinite"] is True
    assert all(torch.isfinite(value).all() for value in weights(run).values())
    assert set(good) == set(weights(run))


def test_data_that_is_not_there_fails_with_one_sentence_before_any_rank_starts(runs_dir, tmp_path):
    run = Run.create(runs_dir, SMALL.changed(data_dir=str(tmp_path / "nowhere"), parallel="ddp", processes=2))
    process = start(run)
    end = ended(process, run)
    assert end["status"] == "failed"
    assert "nowhere" in end["error"]
    assert not run.rank_records()


def test_ranks_share_the_cores(runs_dir, pictures):
    run = new_run(runs_dir, pictures, parallel="ddp", processes=2, epochs=1)
    train(run)
    cores = len(psutil.Process().cpu_affinity())
    assert events(run, "start")[0]["threads"] == max(1, cores // 2)


def test_torchrun_trains_a_run_of_ours(runs_dir, pictures):
    single = new_run(runs_dir, pictures)
    joined = new_run(runs_dir, pictures, parallel="ddp", processes=2)
    train(single)
    module = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "trainer", "train", "--run")
    train(joined, *module)
    assert events(joined, "start")[0]["world_size"] == 2
    assert largest_difference(single, joined) <= 1e-5


needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.gpu
@needs_two_gpus
@pytest.mark.parametrize("parallel", ["dp", "ddp"])
def test_two_gpus_train_like_one_also_on_a_batch_smaller_than_their_number(runs_dir, pictures, parallel):
    program = str(ROOT / "tests" / "programs" / "double_precision.py")
    single = new_run(runs_dir, pictures)
    both = new_run(runs_dir, pictures, parallel=parallel)
    train(single, program)
    train(both, program)
    assert events(both, "start")[0]["backend"] == ("nccl" if parallel == "ddp" else "")
    assert len(events(both, "start")[0]["devices"]) == 2
    assert largest_difference(single, both) <= 1e-9
