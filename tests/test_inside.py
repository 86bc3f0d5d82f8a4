"""What the page is told of the inside of a run."""

import json
import os

import numpy as np
import pytest

from trainer.anatomy import PARTS, steps_path
from trainer.config import TrainConfig
from trainer.events import EventWriter
from trainer.processes import start_of
from trainer.runs import Run
from ui.curves import Curves
from ui.inside import BARS, LANE_STEPS, course, inside_reply, lanes
from ui.live_chart import points_reply

QUICK = [0.000, 0.001, 0.011, 0.031, 0.070, 0.075, 0.076, 0.080, 0.081, 0.004, 0, 0, 0]
LATE = [0.000, 0.031, 0.041, 0.061, 0.070, 0.075, 0.079, 0.080, 0.081, 0.004, 0, 0, 0]


def rows(step: list[float], count: int) -> np.ndarray:
    """So many steps, a tenth of a second apart."""
    moments = [[7 + 0.1 * index + at for at in step[:9]] for index in range(count)]
    return np.array([[index + 2, *at, *step[9:]] for index, at in enumerate(moments)])


def report(step: int, forward: float, ranks: int = 2, steps: int = 10) -> dict:
    return {"kind": "anatomy", "step": step, "steps": steps, "ranks": [{"forward": forward}] * ranks}


class Script:
    """A run of two ranks, all of them this process, whose files the test writes."""

    def __init__(self, runs_dir, **settings):
        self.run = Run.create(runs_dir, TrainConfig(parallel="ddp", processes=2, **settings))
        self.run.claim()
        self.run.ranks_path.mkdir()
        self.events = EventWriter(self.run.events_path)

    def start(self, **facts) -> "Script":
        known = {"world_size": 2, "backend": "gloo", "devices": ["A processor"], "threads": 1}
        self.events.write("start", step=0, total_steps=400, **{**known, **facts})
        return self

    def note(self, *ranks: np.ndarray) -> "Script":
        for rank, found in enumerate(ranks):
            steps_path(self.run, rank).write_bytes(found.astype("<f8").tobytes())
        return self

    def rank(self, rank: int, pid: int, step: int = 3) -> None:
        record = {"rank": rank, "pid": pid, "start": start_of(pid), "step": step}
        (self.run.ranks_path / f"{rank}.json").write_text(json.dumps(record))


@pytest.fixture
def script(runs_dir):
    made = Script(runs_dir)
    yield made
    made.events.close()


@pytest.fixture
def ask(runs_dir):
    curves = Curves(runs_dir)

    def reply(run: Run | str, **more) -> dict:
        found = inside_reply(curves, {"run": run if isinstance(run, str) else run.id, **more})
        json.dumps(found, allow_nan=False)
        return found

    return reply


def test_lanes_show_each_part_where_it_was(script, ask):
    found = ask(script.start().note(rows(QUICK, 3), rows(LATE, 3)).run)["lanes"]
    assert found["steps"] == [2, 3, 4]
    assert found["ms"] == pytest.approx(281)
    quick, late = found["ranks"]
    assert quick[:6] == [
        ["data", 0, 1],
        ["forward", 1, 10],
        ["backward", 11, 20],
        ["waiting", 31, 30],
        ["exchange", 61, 9],
        ["optimizer", 70, 5],
    ]
    assert late[0] == ["data", 0, 31]
    assert not any(part == "waiting" for part, *_ in late)
    assert [part for part, begin, _ in quick if 100 <= begin < 101] == ["data"], "the second step"


def test_the_lanes_of_a_rank_never_overlap(script, ask):
    for segments in ask(script.start().note(rows(QUICK, 20), rows(LATE, 20)).run)["lanes"]["ranks"]:
        ends = [begin + length for _, begin, length in segments]
        assert all(end <= begin + 0.02 for end, (_, begin, _) in zip(ends, segments[1:], strict=False))


def test_the_table_and_the_slowest_are_those_of_the_newest_steps(script, ask):
    first = rows(LATE, 30)
    quick, late = rows(QUICK, 30), rows(QUICK, 30)
    quick[-5:], late[-5:] = quick[-5:], first[-5:]
    found = ask(script.start().note(quick, late).run)
    assert found["slowest"] == {"rank": 1, "ms": 33.0}
    assert [sum(rank[name] for name in PARTS) for rank in found["means"]] == pytest.approx([81, 81])
    assert found["parts"] == ["data", "forward", "backward", "waiting", "exchange", "optimizer", "other"]
    assert found["empty"] == ""


@pytest.mark.parametrize(
    ("wanted", "drawn"), [(3, 3), (None, LANE_STEPS), (0, LANE_STEPS), (10**9, LANE_STEPS), ("2", 6)]
)
def test_a_narrow_page_asks_for_fewer_lanes(script, ask, wanted, drawn: int):
    reply = ask(script.start().note(rows(QUICK, 20), rows(QUICK, 20)).run, steps=wanted)
    assert len(reply["lanes"]["steps"]) == drawn


def test_one_process_neither_waits_nor_exchanges(runs_dir, ask):
    script = Script(runs_dir).start(world_size=1, backend="").note(rows(QUICK, 4))
    found = ask(script.run)
    script.events.close()
    assert found["means"][0]["waiting"] == found["means"][0]["exchange"] == 0
    assert found["slowest"] is None


def test_before_the_first_steps_and_without_the_setting_the_reason_is_told(runs_dir, script, ask):
    assert ask(script.start().run)["empty"] == "The first steps are under way."
    off = Script(runs_dir, anatomy=False).start()
    assert "the setting is off" in ask(off.run)["empty"]
    off.events.write("end", status="completed")
    off.events.close()
    script.events.write("end", status="completed")
    assert ask(script.run)["empty"].startswith("Nothing was noted")


@pytest.mark.parametrize("run", [None, 3, "", "../../etc", "20260101-000000-ddp-0000"])
def test_a_run_that_is_not_there_is_answered_quietly(runs_dir, run):
    found = inside_reply(Curves(runs_dir), {"run": run})
    assert found["empty"] == ""
    assert "lanes" not in found


def test_the_processes_are_told_with_what_they_use(script, ask):
    script.start()
    script.rank(0, os.getppid())
    launcher, rank = ask(script.run)["processes"]
    assert (launcher["name"], launcher["pid"]) == ("launcher", os.getpid())
    assert (rank["name"], rank["device"], rank["threads"], rank["step"]) == ("rank 0", "A processor", 1, 3)
    assert rank["memory"] > 0
    assert rank["cpu"] >= 0
    assert rank["held"] is False


def test_a_process_that_is_gone_or_another_with_its_pid_is_not_shown(script, ask):
    script.start()
    record = {"rank": 0, "pid": os.getppid(), "start": "long ago", "step": 3}
    (script.run.ranks_path / "0.json").write_text(json.dumps(record))
    assert [row["name"] for row in ask(script.run)["processes"]] == ["launcher"]


def test_a_run_of_one_process_is_one_row(script, ask):
    script.start(world_size=1, devices=["GPU 0 X", "GPU 1 X"])
    script.rank(0, os.getpid())
    (row,) = ask(script.run)["processes"]
    assert (row["name"], row["device"]) == ("trainer", "GPU 0 X, GPU 1 X")


def test_an_ended_run_shows_its_steps_and_no_processes(script, ask):
    script.start().note(rows(QUICK, 3), rows(LATE, 3)).rank(0, os.getpid())
    script.events.write("end", status="completed")
    found = ask(script.run)
    assert found["lanes"]["steps"] == [2, 3, 4]
    assert found["processes"] == []


def test_the_course_weighs_events_by_their_steps_and_never_has_too_many_bars():
    (bar,) = course([report(10, 0.1, steps=10)])
    assert bar == {"step": 10, "ms": {"forward": 100}}
    many = [report(index, 0.1 if index % 2 else 0.4, steps=1 if index % 2 else 2) for index in range(1, 6 * BARS + 1)]
    bars = course(many)
    assert len(bars) == BARS
    assert bars[-1]["step"] == 6 * BARS
    assert all(bar["ms"]["forward"] == pytest.approx(300) for bar in bars)
    assert course([]) == []


def test_lanes_of_one_step_are_as_long_as_it():
    found = lanes(np.stack([rows(QUICK, 1), rows(LATE, 1)]))
    assert found["ms"] == pytest.approx(81)


def test_the_verdict_travels_with_the_facts_and_starts_anew_with_a_process(script, runs_dir):
    curves = Curves(runs_dir)

    def verdict() -> str:
        (reply,) = points_reply(curves, {"runs": [{"run": script.run.id}]})["runs"]
        return reply["verdict"]

    script.start()
    assert verdict() == ""
    script.events.write(**report(10, 0.1))
    assert verdict().startswith("100 % of a step is computing")
    script.start()
    assert verdict() == ""
