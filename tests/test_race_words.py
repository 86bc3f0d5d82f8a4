"""A race in words: what was asked, how far it is, and a table whose cells follow from the numbers."""

import time
from contextlib import closing
from dataclasses import replace

import pytest

from tests.test_race_table import lane
from trainer.config import TrainConfig
from trainer.race import Entrant, Race, create_race
from trainer.race_table import Lane
from trainer.runs import RunStatus, event_writer
from ui.race_words import about, ended, progress, table, title

SINGLE, DDP2 = Entrant("single", 1), Entrant("ddp", 2)
SHAPES = TrainConfig(dataset="shapes", devices="cpu", max_steps=40)


def race(runs_dir, config: TrainConfig = SHAPES, **arguments) -> Race:
    return create_race(runs_dir, config, [SINGLE, DDP2], **arguments)


@pytest.mark.parametrize(
    ("changes", "arguments", "words"),
    [
        ({}, {}, "one batch of 128 over all devices, 40 steps, seed 0"),
        ({"seed": 7}, {"repeats": 3}, "40 steps, seed 7, 3 times, there and back"),
        ({}, {"scaling": "weak"}, "a batch of 128 for each device, lr grows with their number"),
        ({"max_steps": 0, "epochs": 1}, {}, "over all devices, 1 epoch, seed"),
        ({"max_steps": 0, "epochs": 5, "target_accuracy": 0.6}, {}, "until 60 % accuracy, at most 5 epochs, seed"),
    ],
)
def test_what_was_asked_is_said_in_words(runs_dir, changes: dict, arguments: dict, words: str):
    said = about(race(runs_dir, SHAPES.changed(**changes), **arguments).plan())
    assert said.startswith("tutorial on shapes, ")
    assert words in said


def test_a_race_is_named_by_its_time_its_label_and_its_modes(runs_dir):
    made = race(runs_dir, SHAPES.changed(label="first try"))
    plan = made.plan()
    day = time.strftime("%d %b %H:%M", time.localtime(plan.made)).lstrip("0")
    assert title(made, plan) == f"{day}, first try, single, ddp x2"


# How far it is


def test_before_its_first_run_has_begun_the_queue_is_what_there_is(runs_dir):
    assert progress(race(runs_dir).states()) == {"progress": "2 runs in the queue", "share": 0.0}


def test_the_living_run_tells_how_far_it_is_and_counts_in_part(runs_dir, actor):
    made = race(runs_dir, repeats=2)
    run = made.runs()[0]
    actor(run, "claim")
    assert progress(made.states())["progress"] == "Run 1 of 4: starts"
    with closing(event_writer(run)) as events:
        events.write("start", step=0, total_steps=40)
        events.write("step", step=10, epoch=0.5, loss=1.0)
    assert progress(made.states()) == {"progress": "Run 1 of 4: step 10 of 40", "share": 0.062}


def test_runs_that_have_ended_count_whole_and_those_to_be_resumed_do_not(runs_dir, actor):
    made = race(runs_dir, repeats=2)
    for run, status in zip(made.runs(), ("completed", "diverged", "stopped"), strict=False):
        actor(run, "claim", "start", f"end:{status}", leave=True)
    assert progress(made.states()) == {"progress": "1 run in the queue", "share": 0.5}


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        ([], "missing"),
        ([RunStatus.COMPLETED] * 2, "done"),
        ([RunStatus.COMPLETED, RunStatus.STOPPED], "stopped"),
        ([RunStatus.COMPLETED, RunStatus.INTERRUPTED], "stopped"),
        ([RunStatus.STOPPED, RunStatus.FAILED], "failed"),
        ([RunStatus.COMPLETED, RunStatus.DIVERGED], "failed"),
    ],
)
def test_a_race_without_a_living_run_has_ended_as_the_worst_of_them(statuses: list, state: str):
    assert ended(statuses) == state


# The table


def cells(found: dict, name: str) -> dict[str, list[str]]:
    row = next(row for row in found["rows"] if row["name"] == name)
    return dict(zip((head for head, _ in found["columns"]), row["cells"], strict=True))


def test_a_cell_is_the_median_with_its_range_where_there_is_one():
    found = table([lane("single", 90.0, 110.0, 100.0), lane("ddp x2", 50.0)], 0.0, 3)
    assert cells(found, "single")["Images/s"] == ["100", "90 to 110"]
    assert cells(found, "ddp x2")["Images/s"] == ["50", ""]
    assert cells(found, "ddp x2")["ms a step"] == ["2,560", ""]
    assert cells(found, "single")["Test accuracy"] == ["50.00 %", ""]


def test_the_bars_are_shares_of_the_fastest():
    found = table([lane("single", 100.0), lane("ddp x2", 50.0), lane("ddp x4", None)], 0.0, 1)
    assert [row["share"] for row in found["rows"]] == [1.0, 0.5, 0]


@pytest.mark.parametrize(
    ("lanes", "target", "columns"),
    [
        ([lane("single", 1.0)], 0.0, set()),
        ([lane("single", 1.0)], 0.6, {"Time to accuracy"}),
        ([lane("single", 1.0, num_gpus=1)], 0.0, {"Efficiency"}),
        ([lane("single", 1.0, num_gpus=1, joules=2000.0)], 0.0, {"Efficiency", "Energy"}),
    ],
)
def test_a_column_that_says_nothing_here_is_left_out(lanes: list[Lane], target: float, columns: set[str]):
    heads = {head for head, _ in table(lanes, target, 1)["columns"]}
    assert heads - {"Images/s", "ms a step", "Speed-up", "Memory", "Test accuracy"} == columns


def test_memory_is_that_of_the_fullest_device_and_all_of_them_below():
    found = table([lane("single", 1.0, num_gpus=2, peak_memory={"GPU 0": 3 * 10**9, "GPU 1": 10**9})], 0.0, 1)
    assert cells(found, "single")["Memory"] == ["3.00 GB", "GPU 0 3.00 GB, GPU 1 1.00 GB"]


def test_what_is_not_measured_is_a_dash_and_no_number():
    found = table([lane("single", None, accuracy=None, peak_memory={})], 0.5, 1)
    assert {tuple(cell) for cell in cells(found, "single").values()} == {("-", "")}


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (Lane("dp x2", "dp", 2, [], "needs two GPUs"), "Not possible here"),
        (lane("single", 1.0), "Done"),
        (lane("single", 1.0, 1.0), "Done"),
        (lane("single", 1.0, None, status=RunStatus.QUEUED), "Queued, 0 of 2"),
        (lane("single", 1.0, status=RunStatus.FAILED), "Failed"),
    ],
)
def test_the_state_of_a_mode_says_how_many_of_its_repeats_are_done(found: Lane, state: str):
    assert table([found], 0.0, 2)["rows"][0]["state"] == state


def test_a_deleted_repeat_is_not_counted_as_done():
    single = lane("single", 1.0, 1.0)
    (row,) = table([replace(single, runs=[None, single.runs[1]])], 0.0, 2)["rows"]
    assert row["state"] == "Done, 1 of 2"
