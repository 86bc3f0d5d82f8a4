"""The moments of steps as they are noted and written."""

import os
from pathlib import Path

import pytest
import torch

from trainer.anatomy import ROW_BYTES, ROWS, Moment, dissect, read_rows, same_steps
from trainer.step_clock import NoClock, StepClock, _overlap

CPU = torch.device("cpu")


def make_step(
    clock: NoClock, step: int, moments=(Moment.DATA, Moment.FORWARD, Moment.BACKWARD, Moment.OPTIMIZER)
) -> None:
    for moment in moments:
        clock.at(moment)
    clock.end(step)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.steps"


def test_the_first_step_of_each_epoch_is_not_noted(path: Path):
    clock = StepClock(path, CPU)
    for epoch in range(2):
        clock.begin()
        for step in (1, 2, 3):
            make_step(clock, 3 * epoch + step)
    assert read_rows(path)[:, 0].tolist() == [2, 3, 5, 6]


def test_steps_follow_each_other_without_a_gap_or_an_overlap(path: Path):
    clock = StepClock(path, CPU)
    clock.begin()
    for step in range(1, 20):
        make_step(clock, step)
    rows = read_rows(path)
    assert (rows[1:, 1 + Moment.BEGIN] >= rows[:-1, 1 + Moment.END]).all()
    gaps = rows[1:, 1 + Moment.BEGIN] - rows[:-1, 1 + Moment.END]
    parts = sum(seconds for name, seconds in dissect(same_steps([rows])).items() if name != "hidden")
    whole = rows[-1, 1 + Moment.END] - rows[0, 1 + Moment.BEGIN]
    assert parts.sum() + gaps.sum() == pytest.approx(whole)


def test_a_moment_that_a_step_lacks_takes_no_time(path: Path):
    clock = StepClock(path, CPU)
    clock.begin()
    make_step(clock, 1)
    make_step(clock, 2)
    (row,) = read_rows(path)
    at = row[1 : 1 + len(Moment)]
    assert at[Moment.READY] == at[Moment.BACKWARD], "one process: nothing is averaged"
    assert at[Moment.OPTIMIZER] == at[Moment.ARRIVE] == at[Moment.MEET], "no exchange in this step"


def test_the_last_bucket_leaves_when_the_gradients_are_ready(path: Path):
    clock = StepClock(path, CPU)
    clock.begin()
    make_step(clock, 1)
    clock.at(Moment.FORWARD)
    clock.bucket_leaves(is_last=False)
    clock.bucket_arrives()
    clock.bucket_leaves(is_last=True)
    clock.bucket_arrives()
    make_step(clock, 2, (Moment.BACKWARD,))
    (row,) = read_rows(path)
    assert row[1 + Moment.FORWARD] <= row[1 + Moment.READY] <= row[1 + Moment.BACKWARD]
    assert 0 < row[1 + len(Moment)] <= row[1 + Moment.READY] - row[1 + Moment.FORWARD]


@pytest.mark.parametrize(
    ("leaving", "arriving", "hidden"),
    [
        ([], [], 0),
        ([1], [3], 2),
        ([1, 2], [3, 4], 3),  # they travel together: that time counts once
        ([1, 4], [2, 5], 2),
        ([1, 4], [2, 9], 3),  # until the last gradient is ready, at 6
        ([6], [9], 0),  # the last bucket hides behind nothing
        ([1, 2, 6], [7, 8, 9], 5),
        ([1, 2], [4, 3], 3),  # the second may arrive first
        ([1], [], 0),
    ],
)
def test_hidden_is_the_time_in_which_any_bucket_was_under_way_before_the_gradients_were_ready(
    leaving, arriving, hidden
):
    assert _overlap(leaving, arriving, 6) == hidden


def test_the_file_is_a_ring_and_never_grows(path: Path):
    clock = StepClock(path, CPU)
    clock.begin()
    for step in range(ROWS + 12):
        make_step(clock, step)
    assert path.stat().st_size == ROWS * ROW_BYTES
    assert read_rows(path)[:, 0].tolist() == list(range(12, ROWS + 12))


def test_a_new_process_starts_a_new_file(path: Path):
    clock = StepClock(path, CPU)
    clock.begin()
    make_step(clock, 1)
    make_step(clock, 2)
    StepClock(path, CPU)
    assert len(read_rows(path)) == 0


def test_a_link_or_a_pipe_in_its_place_is_replaced_and_not_followed(path: Path, tmp_path: Path):
    (tmp_path / "precious").write_text("kept")
    path.symlink_to(tmp_path / "precious")
    StepClock(path, CPU)
    assert (tmp_path / "precious").read_text() == "kept"
    path.unlink()
    os.mkfifo(path)
    StepClock(path, CPU)
    assert path.is_file()


def test_what_cannot_be_written_costs_the_rows_and_not_the_training(tmp_path: Path):
    for path in (tmp_path / "missing" / "0.steps", Path("/dev/full") / "0.steps"):
        clock = StepClock(path, CPU)
        clock.begin()
        make_step(clock, 1)
        make_step(clock, 2)
        assert len(read_rows(path)) == 0


def test_a_clock_that_is_off_does_nothing():
    clock = NoClock()
    clock.begin()
    make_step(clock, 1)
    assert not clock.is_noting


def test_noting_ends_with_its_file(path: Path):
    """Each run of a long-lived process would else keep one open."""
    before = len(os.listdir("/proc/self/fd"))
    clock = StepClock(path, CPU)
    clock.begin()
    del clock
    assert len(os.listdir("/proc/self/fd")) == before
