"""Inside a step: what follows from the moments that the ranks noted."""

import numpy as np
import pytest

from trainer.anatomy import (
    COLUMNS,
    PARTS,
    ROW_BYTES,
    Reporter,
    dissect,
    means,
    read_rows,
    same_steps,
    slowest,
    steps_path,
)
from trainer.config import TrainConfig
from trainer.runs import Run

# begin, pictures, forward, last gradient, backward, optimizer, at the exchange, through, end; hidden and dp's own
QUICK = [1.000, 1.001, 1.011, 1.031, 1.070, 1.075, 1.076, 1.080, 1.081, 0.004, 0, 0, 0]
LATE = [1.000, 1.031, 1.041, 1.061, 1.070, 1.075, 1.079, 1.080, 1.081, 0.004, 0, 0, 0]


def rows(*steps: list[float], first: int = 1) -> np.ndarray:
    return np.array([[first + index, *step] for index, step in enumerate(steps)])


def write(run: Run, rank: int, found: np.ndarray) -> None:
    run.ranks_path.mkdir(parents=True, exist_ok=True)
    steps_path(run, rank).write_bytes(found.astype("<f8").tobytes())


@pytest.fixture
def run(runs_dir) -> Run:
    return Run.create(runs_dir, TrainConfig(dataset="shapes"))


def test_the_parts_of_a_step_add_up_to_its_time():
    parts = dissect(same_steps([rows(QUICK), rows(LATE)]))
    total = sum(parts[name] for name in PARTS)
    assert total == pytest.approx(np.full((2, 1), 0.081))


def test_a_rank_waits_until_the_last_one_has_come_and_only_then_exchanges():
    quick, late = means(same_steps([rows(QUICK), rows(LATE)]))
    assert quick["waiting"] == pytest.approx(0.030 + 0.003)
    assert late["waiting"] == pytest.approx(0)
    assert quick["exchange"] == pytest.approx(late["exchange"]) == pytest.approx(0.009 + 0.001)
    assert late["data"] == pytest.approx(0.031)


def test_hidden_exchange_is_told_apart_and_is_no_part_of_the_sum():
    (one, _) = means(same_steps([rows(QUICK), rows(QUICK)]))
    assert one["hidden"] == pytest.approx(0.004)
    assert "hidden" not in PARTS


def test_one_process_exchanges_nothing():
    (alone,) = means(same_steps([rows(QUICK)]))
    assert (alone["waiting"], alone["exchange"]) == (0, 0)
    assert sum(alone[name] for name in PARTS) == pytest.approx(0.081)


def test_what_data_parallel_copies_is_taken_out_of_its_forward():
    copied = [*QUICK[:9], 0, 0.001, 0.004, 0.002]
    (alone,) = means(same_steps([rows(copied)]))
    assert [alone[name] for name in ("scatter", "replicate", "gather")] == pytest.approx([0.001, 0.004, 0.002])
    assert alone["forward"] == pytest.approx(0.003)
    assert sum(alone[name] for name in PARTS) == pytest.approx(0.081)


def test_the_rank_that_the_others_wait_for_is_named_with_how_long():
    rank, seconds = slowest(means(same_steps([rows(QUICK), rows(LATE), rows(QUICK)])))
    assert rank == 1
    assert seconds == pytest.approx(0.033)


def test_of_equal_ranks_and_of_one_alone_none_is_the_slowest():
    assert slowest(means(same_steps([rows(QUICK), rows(QUICK)]))) is None
    assert slowest(means(same_steps([rows(LATE)]))) is None


def test_only_steps_that_all_ranks_have_made_are_compared():
    found = same_steps([rows(QUICK, QUICK, QUICK, first=5), rows(LATE, LATE, first=6)])
    assert found.shape == (2, 2, len(COLUMNS))
    assert found[:, :, 0].tolist() == [[6, 7], [6, 7]]


def test_the_newest_rows_of_a_ring_come_last(run: Run):
    write(run, 0, np.concatenate([rows(QUICK, QUICK, first=257), rows(QUICK, first=3)]))
    assert read_rows(steps_path(run, 0))[:, 0].tolist() == [3, 257, 258]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found[:, 3].__setitem__(0, np.nan),
        lambda found: found[:, 4].__setitem__(0, 0.5),  # earlier than the moment before it
        lambda found: found[:, 10].__setitem__(0, -1),
        lambda found: found[:, 0].__setitem__(0, 0),  # a hole in the file
        lambda found: found[:, 9].__setitem__(0, np.inf),
    ],
)
def test_a_senseless_row_is_left_out(run: Run, spoil):
    found = rows(QUICK, QUICK)
    spoil(found)
    write(run, 0, found)
    assert read_rows(steps_path(run, 0))[:, 0].tolist() == [2]


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * ROW_BYTES, b"\xff" * (5 * ROW_BYTES + 3)])
def test_a_file_of_anything_else_has_no_rows(run: Run, content: bytes):
    run.ranks_path.mkdir()
    steps_path(run, 0).write_bytes(content)
    assert read_rows(steps_path(run, 0)).shape == (0, len(COLUMNS))


def test_a_torn_last_row_costs_only_itself(run: Run):
    write(run, 0, rows(QUICK, QUICK))
    whole = steps_path(run, 0).read_bytes()
    steps_path(run, 0).write_bytes(whole[:-5])
    assert read_rows(steps_path(run, 0))[:, 0].tolist() == [1]


def test_rank_0_tells_each_step_once(run: Run):
    reporter = Reporter(run, world_size=2)
    assert reporter.news(is_last=True) is None
    write(run, 0, rows(QUICK, QUICK))
    write(run, 1, rows(LATE))
    first = reporter.news(is_last=True)
    assert (first["step"], first["steps"]) == (1, 1)
    assert reporter.news(is_last=True) is None
    write(run, 1, rows(LATE, LATE))
    second = reporter.news(is_last=True)
    assert (second["step"], second["steps"]) == (2, 1)
    assert second["seconds"] == pytest.approx(0.081)


def test_a_report_that_is_not_due_reads_nothing(run: Run):
    write(run, 0, rows(QUICK))
    assert Reporter(run, world_size=1).news() is None
