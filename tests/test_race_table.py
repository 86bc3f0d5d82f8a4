"""The table of a race: medians with their range, speed-ups within a repeat, and words that follow from the numbers."""

from dataclasses import replace

import pytest

from trainer.config import TrainConfig
from trainer.measure import Measured
from trainer.race_table import Lane, headline, rows
from trainer.runs import RunStatus

CPU_RUN = Measured(
    run="20260101-000000-single-0000",
    status=RunStatus.COMPLETED,
    error="",
    config=TrainConfig(batch_size=128),
    world_size=1,
    devices=("AMD EPYC",),
    is_cpu=True,
    precision="fp32",
    step=100,
    images_per_second=None,
    seconds=10.0,
    accuracy=0.5,
    loss=1.0,
    seconds_to_target=None,
    peak_memory={"CPU": 100},
    joules=None,
)


def lane(name: str, *rates: float | None, num_gpus: int = 0, **changes) -> Lane:
    parallel, _, count = name.partition(" x")
    gpus = tuple(f"GPU {i} NVIDIA H200" for i in range(num_gpus))
    run = replace(CPU_RUN, devices=gpus or CPU_RUN.devices, is_cpu=not gpus, **changes)
    return Lane(name, parallel, int(count or 1), [replace(run, images_per_second=rate) for rate in rates])


def test_speed_up_is_that_over_single_and_efficiency_that_of_each_device():
    single, ddp = rows([lane("single", 100.0, num_gpus=1), lane("ddp x4", 300.0, num_gpus=4)])
    assert (single["speed_up"], single["efficiency"]) == (1.0, 1.0)
    assert (ddp["speed_up"], ddp["efficiency"]) == (3.0, 0.75)


def test_ranks_on_a_cpu_are_no_more_devices():
    _, ddp = rows([lane("single", 100.0), lane("ddp x4", 80.0)])
    assert (ddp["speed_up"], ddp["efficiency"]) == (0.8, 0.8)


def test_without_single_one_rank_of_ddp_is_the_measure():
    one, two = rows([lane("ddp x1", 100.0), lane("ddp x2", 90.0)])
    assert (one["speed_up"], two["speed_up"]) == (1.0, 0.9)


def test_without_one_device_there_is_no_speed_up():
    (row,) = rows([lane("ddp x2", 90.0)])
    assert (row["speed_up"], row["efficiency"], row["images_per_second"]) == (None, None, 90.0)


def test_a_lesson_without_one_device_is_compared_with_the_mode_as_it_is():
    changed = replace(lane("ddp x2", 60.0, num_gpus=2), name="ddp x2 (slow_ms 30)", is_changed=True)
    plain, slowed = rows([lane("ddp x2", 90.0, num_gpus=2), changed])
    assert (plain["speed_up"], slowed["speed_up"]) == (1.0, pytest.approx(2 / 3))
    assert slowed["efficiency"] is None, "that would be a share of one device's speed"


def test_what_was_changed_is_never_the_measure_of_what_was_not():
    changed = replace(lane("single", 10.0), name="single (threads 1)", is_changed=True)
    slowed, plain = rows([changed, lane("single", 100.0)])
    assert (slowed["speed_up"], plain["speed_up"]) == (0.1, 1.0)


def test_the_verdict_is_that_of_the_newest_run_that_has_one():
    runs = [replace(CPU_RUN, verdict=words) for words in ("old", "new", "")]
    (row,) = rows([Lane("single", "single", 1, runs)])
    assert row["verdict"] == "new"


def test_a_number_is_the_median_of_the_repeats_with_the_least_and_the_largest():
    row, _ = rows([lane("single", 90.0, 100.0, 170.0), lane("ddp x2", 50.0)])
    assert (row["images_per_second"], row["images_per_second_range"]) == (100.0, [90.0, 170.0])
    assert row["seconds_per_step"] == pytest.approx(1.28)
    assert row["repeats"] == 3


def test_speed_ups_are_taken_between_runs_of_the_same_repeat():
    """A machine that is half as fast in the second repeat changes none."""
    _, ddp = rows([lane("single", 100.0, 50.0), lane("ddp x2", 80.0, 40.0)])
    assert ddp["speed_up_range"] == [0.8, 0.8]


def test_a_repeat_that_was_not_measured_leaves_the_others_their_partners():
    _, ddp = rows([lane("single", None, 50.0), lane("ddp x2", 80.0, 40.0)])
    assert (ddp["speed_up"], ddp["repeats"]) == (0.8, 2)


def test_a_run_that_was_deleted_is_left_out():
    single = lane("single", 100.0, 50.0)
    (row,) = rows([replace(single, runs=[None, single.runs[1]])])
    assert (row["images_per_second"], len(row["runs"])) == (50.0, 1)


def test_peak_memory_is_the_largest_of_each_device_over_the_repeats():
    single = lane("single", 100.0, 100.0)
    peaks = ({"GPU 0": 5, "GPU 1": 2}, {"GPU 1": 7})
    runs = [replace(run, peak_memory=peak) for run, peak in zip(single.runs, peaks, strict=True) if run]
    assert rows([replace(single, runs=runs)])[0]["peak_memory"] == {"GPU 0": 5, "GPU 1": 7}


def test_a_mode_that_cannot_run_here_is_a_row_with_the_reason_and_no_number():
    _, row = rows([lane("single", 100.0), Lane("dp x2", "dp", 2, [], "dp x2 needs two GPUs or more")])
    assert (row["status"], row["reason"]) == ("refused", "dp x2 needs two GPUs or more")
    assert row["images_per_second"] is row["speed_up"] is row["accuracy"] is None


def test_a_mode_is_completed_when_all_its_repeats_are():
    done = lane("single", 1.0, 1.0)
    failed = lane("single", 1.0, status=RunStatus.FAILED, error="rank 1 was killed")
    (row,) = rows([replace(done, runs=[*done.runs[:1], *failed.runs])])
    assert (row["status"], row["reason"]) == ("failed", "rank 1 was killed")
    assert rows([done])[0]["status"] == "completed"
    assert rows([Lane("single", "single", 1, [])])[0]["status"] == "queued"


# In words


def said(*lanes: Lane) -> str:
    return headline(rows(lanes))


def test_the_fastest_is_named_and_the_others_as_shares_of_it():
    words = said(
        lane("single", 1000.0, num_gpus=1), lane("dp x2", 600.0, num_gpus=2), lane("ddp x2", 1500.0, num_gpus=2)
    )
    assert words.startswith("ddp x2 is the fastest here: 1,500 images/s. single reaches 67 % of that and dp x2 40 %.")
    assert "CPU" not in words


def test_a_cpu_that_the_ranks_share_is_named_as_such():
    assert said(lane("single", 100.0), lane("ddp x2", 80.0)).endswith(
        "The ranks share this CPU: more of them add no cores."
    )
    assert "CPU" not in said(lane("single", 100.0), lane("ddp x1", 80.0))


def test_numbers_measured_once_are_called_so():
    assert "Measured once" in said(lane("single", 100.0), lane("ddp x2", 80.0))
    assert "Measured once" not in said(lane("single", 100.0, 101.0), lane("ddp x2", 80.0, 81.0))


def test_modes_whose_ranges_overlap_are_not_ranked_without_saying_so():
    words = said(lane("single", 100.0, 90.0), lane("ddp x1", 95.0, 93.0), lane("ddp x2", 50.0, 40.0))
    assert words.startswith(
        "single and ddp x1 overlap over the repeats: which of them is faster is not certain. single trains 95 images/s."
    )
    assert "ddp x2 47 %" in words
    assert "overlap" not in said(lane("single", 100.0, 90.0), lane("ddp x2", 50.0, 40.0))


def test_other_programs_that_kept_the_cpu_busy_are_told_of():
    quiet, busy = lane("single", 100.0, others=0.02), lane("ddp x2", 90.0, others=0.34)
    assert said(quiet, busy).endswith(
        "Other programs took up to 34 % of this CPU meanwhile: race again when it is idle."
    )
    assert "Other programs" in said(busy)
    assert "Other programs" not in said(quiet, lane("ddp x2", 90.0))
    assert "Other programs" not in said(lane("single", 9.0, num_gpus=1, others=0.9))


def test_one_mode_alone_is_compared_with_nothing():
    assert (
        said(lane("single", 100.0)) == "single trains 100 images/s; no other mode has been measured to compare it with."
    )


def test_without_a_measured_run_nothing_is_said():
    assert said(lane("single", None), Lane("ddp x2", "ddp", 2, [])) == ""
