"""A calibration is short, measures the real thing in real processes, and leaves none behind."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from tests.conftest import await_true
from trainer import probe
from trainer.calibrate import calibrate
from trainer.calibration import Calibration, CalibrationError
from trainer.config import TrainConfig
from trainer.devices import cpu_cores, cpu_name
from trainer.forecast import forecast
from trainer.models import build_model
from trainer.parallel import Worker
from trainer.placement import Placement, place

SMALL = TrainConfig(dataset="shapes", model="fast", batch_size=16, devices="cpu", precision="fp32", lookahead=2)
CPU = torch.device("cpu")


def placements(*counts: int) -> list[tuple[Placement, int]]:
    found = []
    for count in counts:
        parallel = "single" if count == 1 else "ddp"
        placement = place(SMALL.changed(parallel=parallel, processes=count if count > 1 else 0), [], cpu_cores(), False)
        found.append((placement, placement.per_device_batch))
    return found


def ranks_of(parent: psutil.Process) -> list[psutil.Process]:
    """Its spawned ranks, without multiprocessing's resource tracker, which ends with its process."""
    found = []
    for child in parent.children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.fixture(scope="module")
def calibrated() -> Calibration:
    before = dict(os.environ)
    made = calibrate(SMALL, placements(1, 2), seconds=0.1)
    assert dict(os.environ) == before
    assert ranks_of(psutil.Process()) == []
    return made


def test_it_measures_steps_and_exchanges_for_each_number_of_ranks(calibrated: Calibration):
    assert [(point.ranks, point.batch) for point in calibrated.compute] == [(1, 8), (1, 16), (2, 4), (2, 8)]
    assert {point.ranks for point in calibrated.exchange} == {2}
    assert calibrated.gradient_bytes in {point.size for point in calibrated.exchange}
    assert all(point.seconds > 0 for point in (*calibrated.compute, *calibrated.exchange))


def test_it_says_what_was_measured_and_where(calibrated: Calibration):
    assert (calibrated.model, calibrated.precision, calibrated.optimizer) == ("fast", "fp32", "sgd")
    assert (calibrated.device, calibrated.is_cpu, calibrated.cores) == (cpu_name(), True, cpu_cores())
    assert 0 <= calibrated.others <= 1
    assert calibrated.torch == torch.__version__.split("+")[0] or calibrated.torch == torch.__version__


def test_what_it_measured_can_be_forecast_from(calibrated: Calibration):
    single, two, four = forecast(calibrated, 16, [1, 2, 4])
    assert single["speed_up"] == pytest.approx(1)
    assert two["is_calibrated"]
    assert not four["is_calibrated"]
    assert two["parts"]["exchange"] > 0


def test_gradients_are_counted_as_the_network_has_them_without_what_is_frozen():
    trained = [p for p in build_model("fast", 10).parameters() if p.requires_grad]
    assert probe.gradient_bytes(SMALL) == 4 * sum(p.numel() for p in trained)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "tutorial", "optimizer": "adamw", "augment": "crop_flip_cutout"},
        {"grad_clip": 1.0, "momentum": 0.9, "nesterov": True},
        {"label_smoothing": 0.2, "bias_lr": 64.0, "augment": "none"},
    ],
)
def test_the_step_that_is_timed_takes_every_setting_that_a_run_takes(changes: dict):
    found = probe.time_step(SMALL.changed(**changes), Worker(0, 1, CPU), 4, seconds=0.01)
    assert found["seconds"] > 0
    assert found["spread"] >= 0


def test_the_timed_step_sees_all_pictures_of_a_rank_and_changes_no_weight_by_noise():
    step = probe._training_step(SMALL, Worker(0, 1, CPU), 12)
    for _ in range(3):
        loss, correct, count = step().tolist()
        assert count == 12
        assert 0 <= correct <= 12
        assert loss == pytest.approx(12 * 2.3, rel=0.3)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_ends_it_with_its_number_and_leaves_nothing(victim: int):
    me = psutil.Process()
    killed: list[int] = []

    def tell(_: str) -> None:
        rank = sorted(ranks_of(me), key=lambda process: process.pid)[victim]
        killed.append(rank.pid)
        rank.kill()

    with pytest.raises(CalibrationError, match=f"Rank {victim} of the calibration was killed by SIGKILL"):
        calibrate(SMALL, placements(2), tell, seconds=0.1)
    assert len(killed) == 1
    assert ranks_of(me) == []


def test_a_rank_that_dies_while_it_measures_ends_it_too():
    me = psutil.Process()

    def are_at_work() -> bool:
        ranks = ranks_of(me)
        with suppress(psutil.Error):
            return len(ranks) == 2 and all(rank.num_threads() > 1 for rank in ranks)
        return False

    def kill_one() -> None:
        await_true(are_at_work, 60, "two ranks at work")
        max(ranks_of(me), key=lambda process: process.pid).kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    many = [(placement, 4096) for placement, _ in placements(2)]  # it takes longer than the killer
    with pytest.raises(CalibrationError, match="Rank 1 of the calibration was killed by SIGKILL"):
        calibrate(SMALL, many, seconds=600)
    killer.join(60)
    assert ranks_of(me) == []


def test_what_fails_in_a_rank_is_told_in_one_sentence():
    broken = SMALL.model_copy(update={"model": "no such network"})
    with pytest.raises(KeyError):  # refused here already
        calibrate(broken, placements(1))
    wrong = SMALL.model_copy(update={"lr": "quick"})
    with pytest.raises(CalibrationError, match="Rank 0 of the calibration failed: ") as caught:
        calibrate(wrong, placements(1), seconds=0.1)
    assert "\n" not in str(caught.value)
    assert ranks_of(psutil.Process()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_command_however_it_ends(start_process, tmp_path: Path, number: signal.Signals):
    words = ["forecast", "--preset", "smoke", "--devices", "cpu", "--batch-size", "1024"]
    process = start_process(sys.executable, "-m", "trainer", *words, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    command = psutil.Process(process.pid)
    await_true(lambda: len(ranks_of(command)) == 4, 60, "four ranks")
    ranks = ranks_of(command)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    await_true(lambda: not any(rank.is_running() and rank.status() != "zombie" for rank in ranks), 20, "their end")
    if number != signal.SIGKILL:
        assert process.returncode == 1
        assert "error: the calibration was stopped: nothing was kept" in err.splitlines()
    assert not (tmp_path / "cache" / "calibrations").exists()
