"""Whole runs as real processes: the modes train the same, a rerun and a resumed run are bit-equal, faults are told.

pytest tests/test_launch.py
"""

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from tests.conftest import ROOT, await_true
from trainer import checkpoint
from trainer.anatomy import PARTS, slowest
from trainer.config import TrainConfig
from trainer.event_reader import read_events
from trainer.launch import launch
from trainer.models import build_model
from trainer.parallel import weights_checksum
from trainer.processes import alive
from trainer.runs import Run
from trainer.verdict import summarise, verdict

DOUBLE_PRECISION = str(ROOT / "tests" / "programs" / "double_precision.py")
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


def train(run: Run) -> Run:
    """Train a run to its end from this process; ddp still spawns its ranks."""
    run.claim()
    outcome = launch(run)
    assert outcome.status == "completed", outcome
    return run


def run_program(*argv: str) -> None:
    """Run a Python program to its good end; show its output otherwise."""
    done = subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(autouse=True)
def _own_settings_of_the_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Training from this process changes its environment and threads; put them back."""
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        if not os.environ[name]:
            monkeypatch.delenv(name)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


MODES = {"single": {"parallel": "single"}, "ddp": {"parallel": "ddp", "processes": 2}}


@pytest.fixture(scope="module")
def unbroken(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The finished run of SMALL in a mode, trained once for all tests that compare with it."""
    runs: dict[str, Run] = {}

    def of(mode: str) -> Run:
        if mode not in runs:
            runs[mode] = train(new_run(tmp_path_factory.mktemp("unbroken"), pictures, **MODES[mode]))
        return runs[mode]

    return of


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


def test_ddp_trains_like_one_process_also_on_a_batch_smaller_than_the_group(runs_dir, pictures):
    modes = ({}, {"parallel": "ddp", "processes": 2}, {"parallel": "ddp", "processes": 3})
    single, *groups = (new_run(runs_dir, pictures, **mode) for mode in modes)
    run_program(DOUBLE_PRECISION, *(str(run.path) for run in (single, *groups)))
    assert weights(single)["fc1.weight"].dtype == torch.float64
    for ddp in groups:
        assert events(ddp, "start")[0]["world_size"] == ddp.config().processes
        assert largest_difference(single, ddp) <= 1e-12
        for ours, theirs in zip(events(single, "step"), events(ddp, "step"), strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-12)
            assert ours["accuracy"] == theirs["accuracy"]
        assert [e["count"] for e in events(ddp, "eval")] == [NUM_TEST, NUM_TEST]
        assert [e["accuracy"] for e in events(single, "eval")] == [e["accuracy"] for e in events(ddp, "eval")]


@pytest.mark.parametrize("mode", MODES)
def test_looking_inside_the_steps_changes_no_bit_of_the_result(runs_dir, pictures, unbroken, mode: str):
    blind = train(new_run(runs_dir, pictures, anatomy=False, **MODES[mode]))
    assert not events(blind, "anatomy")
    assert not [*blind.ranks_path.glob("*.steps")]
    assert events(unbroken(mode), "anatomy")
    assert is_bit_equal(blind, unbroken(mode))


def test_what_a_step_is_made_of_adds_up_and_only_ddp_exchanges(unbroken):
    for mode in MODES:
        step = summarise(read_events(unbroken(mode).events_path))
        assert len(step.ranks) == MODES[mode].get("processes", 1)
        assert step.share(*PARTS) == pytest.approx(1)
        assert step.of("forward") > 0
        assert step.of("backward") > 0
        assert (step.of("exchange") > 0) == (mode == "ddp")


def test_a_rank_that_is_late_is_named_and_the_others_wait_as_long_as_it_is_late(runs_dir, pictures):
    run = train(new_run(runs_dir, pictures, slow_ms=300, **MODES["ddp"]))
    step = summarise(read_events(run.events_path))
    (start,) = events(run, "start")
    rank, longer = slowest(step.ranks)
    assert rank == 1
    assert 0.15 < longer < 0.6
    assert verdict(start, step).startswith("Rank 1 holds the others up")
    assert any("rank 1 come 300 ms late" in event["text"] for event in events(run, "warning"))


def test_smaller_buckets_are_another_way_to_the_same_result(runs_dir, pictures, unbroken):
    assert is_bit_equal(train(new_run(runs_dir, pictures, bucket_mb=1, **MODES["ddp"])), unbroken("ddp"))


def test_every_evaluation_of_several_ranks_tells_the_checksum_of_the_weights_that_all_of_them_hold(unbroken):
    assert not any("checksum" in event for event in events(unbroken("single"), "eval"))
    first, last = (event["checksum"] for event in events(unbroken("ddp"), "eval"))
    assert first != last
    model = build_model(unbroken("ddp").config().model, num_classes=3)
    model.load_state_dict(weights(unbroken("ddp")))
    assert f"{weights_checksum(model):08x}" == last


def test_another_seed_trains_another_network(runs_dir, pictures, unbroken):
    assert largest_difference(unbroken("single"), train(new_run(runs_dir, pictures, seed=4))) > 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_a_rerun_is_bit_equal(runs_dir, pictures, unbroken, mode):
    assert is_bit_equal(unbroken(mode), train(new_run(runs_dir, pictures, **MODES[mode])))


@pytest.mark.parametrize("mode", MODES)
def test_a_run_resumed_after_an_epoch_is_bit_equal_to_the_unbroken_one(runs_dir, pictures, trainer, unbroken, mode):
    resumed = train(new_run(runs_dir, pictures, epochs=1, **MODES[mode]))
    assert not is_bit_equal(unbroken(mode), resumed)
    done = trainer("resume", resumed.id, "--epochs", "2", "--runs-dir", str(runs_dir))
    assert done.returncode == 0, done.stderr
    assert is_bit_equal(unbroken(mode), resumed)
    assert events(unbroken(mode), "eval")[-1]["loss"] == events(resumed, "eval")[-1]["loss"]
    assert events(resumed, "start")[-1]["step"] == 6


def test_a_run_stopped_within_an_epoch_goes_on_bit_equal(runs_dir, pictures, start_process):
    settings = {"epochs": 4, "schedule": "cosine", "warmup": 1.0, "batch_size": 4}
    # In directories of their own: this process has trained one of them and so holds its device.
    whole, stopped = (new_run(runs_dir / name, pictures, **settings) for name in ("whole", "stopped"))
    train(whole)
    process = start(start_process, stopped)
    await_true(lambda: len(events(stopped, "step")) >= 20, what="20 steps")
    stopped.ask_to_stop()
    assert process.wait(60) == 0
    assert stopped.state().status == "stopped"
    assert 0 < checkpoint.load(stopped.checkpoint_path("last"))["step"] < 64
    stopped.prepare_resume()
    assert is_bit_equal(whole, train(stopped))


def test_a_checkpoint_of_any_mode_goes_on_in_any_other(runs_dir, pictures):
    run = train(new_run(runs_dir, pictures, epochs=1))
    for epochs, parallel in enumerate(["dp", "ddp", "single", "ddp", "dp", "single"], start=2):
        run.write_config(run.config().changed(epochs=epochs, parallel=parallel))
        run.prepare_resume()
        train(run)
        state = checkpoint.load(run.checkpoint_path("last"))
        assert (state["epoch"], state["config"]["parallel"]) == (epochs, parallel)
        assert not [key for key in state["model"] if key.startswith("module.")]


def test_dp_without_gpus_says_that_it_is_one_device_and_trains_the_same(runs_dir, pictures, unbroken):
    dp = train(new_run(runs_dir, pictures, parallel="dp", devices="cpu"))
    assert any("DataParallel" in event["text"] for event in events(dp, "warning"))
    assert is_bit_equal(unbroken("single"), dp)


def test_batchnorm_networks_train_evaluate_and_save_what_was_evaluated_in_ddp(runs_dir, pictures, trainer):
    run = train(new_run(runs_dir, pictures, model="resnet9", parallel="ddp", processes=2, epochs=1))
    done = trainer("evaluate", str(run.path), "--checkpoint", "last", "--json")
    result = json.loads(done.stdout)
    last = events(run, "eval")[-1]
    assert result["count"] == last["count"] == NUM_TEST
    assert result["accuracy"] == last["accuracy"]
    assert result["loss"] == pytest.approx(last["loss"], rel=1e-5)


def start(start_process, run: Run) -> subprocess.Popen:
    argv = (sys.executable, "-m", "trainer", "train", "--run", run.path)
    return start_process(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ended(process: subprocess.Popen, run: Run) -> dict:
    """The run's `end` event, with no process of it left."""
    process.wait(60)
    assert not [known for known in run.rank_identities() if alive(known)]
    return events(run, "end")[-1]


def test_a_killed_rank_is_reported_with_its_rank_and_signal(runs_dir, pictures, start_process):
    run = new_run(runs_dir, pictures, parallel="ddp", processes=2, epochs=1000)
    process = start(start_process, run)
    await_true(lambda: events(run, "step"), what="the first step")
    os.kill(run.rank_records()[1]["pid"], signal.SIGKILL)
    end = ended(process, run)
    assert process.returncode == 1
    assert (end["status"], end["rank"]) == ("failed", 1)
    assert "SIGKILL" in end["error"]
    assert run.state().status == "failed"


def test_ranks_leave_when_their_launcher_is_killed(runs_dir, pictures, start_process):
    run = new_run(runs_dir, pictures, parallel="ddp", processes=2, epochs=1000)
    process = start(start_process, run)
    await_true(lambda: events(run, "step"), what="the first step")
    process.kill()
    process.wait(10)
    await_true(lambda: not any(map(alive, run.rank_identities())), 30, "the end of the ranks")
    assert run.state().status == "interrupted"


@pytest.mark.parametrize(("mode", "number"), [("single", signal.SIGTERM), ("ddp", signal.SIGINT)])
def test_a_signal_to_the_launcher_stops_the_run_with_a_checkpoint(runs_dir, pictures, start_process, mode, number):
    run = new_run(runs_dir, pictures, epochs=1000, **MODES[mode])
    process = start(start_process, run)
    await_true(lambda: events(run, "step"), what="the first step")
    process.send_signal(number)
    end = ended(process, run)
    assert end["status"] == "stopped"
    assert checkpoint.load(run.checkpoint_path("last"))["step"] == end["step"] > 0


def test_a_loss_that_leaves_the_numbers_ends_the_run_as_diverged_with_the_last_finite_checkpoint(
    runs_dir, pictures, start_process
):
    run = train(new_run(runs_dir, pictures, epochs=1))
    good = weights(run)
    run.write_config(run.config().changed(lr=1e6, epochs=50))
    run.prepare_resume()
    process = start(start_process, run)
    end = ended(process, run)
    assert end["status"] == "diverged"
    assert "learning rate" in end["error"]
    assert events(run, "step")[-1]["loss"] is None
    assert events(run, "step")[-1]["nonfinite"] is True
    assert all(torch.isfinite(value).all() for value in weights(run).values())
    assert set(good) == set(weights(run))


def test_data_that_is_not_there_fails_with_one_sentence_before_any_rank_starts(runs_dir, tmp_path, start_process):
    run = Run.create(runs_dir, SMALL.changed(data_dir=str(tmp_path / "nowhere"), parallel="ddp", processes=2))
    process = start(start_process, run)
    end = ended(process, run)
    assert end["status"] == "failed"
    assert "nowhere" in end["error"]
    assert not run.rank_records()


def test_the_start_says_what_was_chosen_for_this_machine_and_ranks_share_the_cores(unbroken):
    cores = len(psutil.Process().cpu_affinity())
    start = events(unbroken("single"), "start")[0]
    assert start["threads"] == cores
    assert start["memory_format"] == "channels_last"
    assert start["allocator"] == ("freed memory kept" if platform.libc_ver()[0] == "glibc" else "system")
    assert events(unbroken("ddp"), "start")[0]["threads"] == max(1, cores // 2)


def test_torchrun_trains_a_run_of_ours(runs_dir, pictures, unbroken):
    joined = new_run(runs_dir, pictures, **MODES["ddp"])
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run_program(*torchrun, "-m", "--", "trainer", "train", "--run", str(joined.path))
    assert joined.state().status == "completed"
    assert is_bit_equal(unbroken("ddp"), joined)


needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.gpu
@needs_two_gpus
@pytest.mark.parametrize("parallel", ["dp", "ddp"])
def test_two_gpus_train_like_one_also_on_a_batch_smaller_than_their_number(runs_dir, pictures, parallel):
    single, both = new_run(runs_dir, pictures), new_run(runs_dir, pictures, parallel=parallel)
    run_program(DOUBLE_PRECISION, str(single.path), str(both.path))
    assert events(both, "start")[0]["backend"] == ("nccl" if parallel == "ddp" else "")
    assert len(events(both, "start")[0]["devices"]) == 2
    assert largest_difference(single, both) <= 1e-9


@pytest.mark.gpu
@needs_two_gpus
@pytest.mark.parametrize("parallel", ["dp", "ddp"])
def test_two_gpus_note_each_tenth_step_by_their_own_clock(runs_dir, pictures, parallel):
    run = train(new_run(runs_dir, pictures, parallel=parallel, epochs=30, log_every=2))
    step = summarise(read_events(run.events_path))
    assert len(step.ranks) == (2 if parallel == "ddp" else 1)
    assert step.of("forward") > 0
    assert step.of("backward") > 0
    assert (step.of("exchange") > 0) == (parallel == "ddp")
    assert all((step.of(part) > 0) == (parallel == "dp") for part in ("scatter", "replicate", "gather"))
