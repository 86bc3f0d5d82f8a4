"""The curves of a run: thinned without losing a spike, sent as deltas, true after a resume, a cut and bad lines."""

import json
import math
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from trainer.config import TrainConfig
from trainer.events import EventWriter
from trainer.runs import Run, RunError, RunStatus
from ui.curves import RECENT, Cursor, Curves
from ui.json_reply import json_reply
from ui.live_chart import log_reply, points_reply
from ui.run_facts import duration
from ui.thinning import Point, Smoother, Thinned

NOTHING = Cursor()


@pytest.fixture
def run(runs_dir: Path) -> Run:
    run = Run.create(runs_dir, TrainConfig(parallel="single"))
    run.claim()
    return run


@pytest.fixture
def write(run: Run):
    writer = EventWriter(run.events_path)
    yield writer.write
    writer.close()


@pytest.fixture
def curves(runs_dir: Path) -> Curves:
    return Curves(runs_dir)


def step(write: Callable, number: int, loss: float = 1.0) -> None:
    write("step", step=number, epoch=number / 100, loss=loss, accuracy=0.5, lr=0.01, images_per_second=50.0)


def since(curves: Curves, run: Run, cursor: Cursor = NOTHING, **options) -> dict:
    with curves.history(run.id) as history:
        return history.since(cursor, **options)


def cursor(reply: dict) -> Cursor:
    return Cursor(reply["version"], reply["points"], reply["tests"])


def body(answer: Callable, curves: Curves, request: object) -> bytes:
    """What a browser gets for its request."""
    return json_reply(partial(answer, curves), "asked")(request).body


def ask(curves: Curves, request: object) -> dict:
    return json.loads(body(points_reply, curves, request))


def point(number: int, loss: float | None) -> Point:
    return Point(number, 0.0, 0.0, loss, loss, loss, 0.1)


def test_every_spike_survives_thinning():
    thinned, spikes = Thinned(64, "loss"), {}
    random.seed(1)
    for number in range(1, 20_001):
        loss = 1 + random.random() / 10
        if number % 997 == 0:
            loss = spikes[number] = (50.0 if number % 2 else 0.001) + number / 1e6
        thinned.add(point(number, loss))
    kept = {row.step: row.loss for row in thinned.rows(64)}
    assert len(kept) <= 128
    assert spikes.items() <= kept.items()


def test_points_once_drawn_never_move_and_bins_stay():
    thinned, truth = Thinned(32, "loss"), {}
    random.seed(2)
    before: list = []
    width = 1
    for number in range(1, 3000):
        truth[number] = random.random()
        thinned.add(point(number, truth[number]))
        rows = thinned.rows(32)
        assert all(row.loss == truth[row.step] for row in rows)
        if thinned.width == width:  # all but the bin that is being filled is as it was
            closed = [row for row in before if row.step // width < number // width]
            assert rows[: len(closed)] == closed
        before, width = rows, thinned.width
    assert math.log2(width).is_integer()
    assert width > 1


def test_first_point_without_a_value_survives_thinning():
    thinned = Thinned(8, "loss")
    for number in range(1, 1000):
        thinned.add(point(number, None if number in (500, 501) else 1.0))
    assert [row.step for row in thinned.rows(8) if row.loss is None] == [500]


def test_smoothing_has_no_bias_at_the_start_and_steps_over_gaps():
    smoother = Smoother(0.98)
    assert smoother.add(None) is None
    assert smoother.add(2.3) == pytest.approx(2.3)
    assert smoother.add(None) == pytest.approx(2.3)
    assert smoother.add(2.3) == pytest.approx(2.3)


def test_smoothing_is_the_same_whatever_is_thinned_away(run, write, curves):
    for number in range(1, 200):
        step(write, number, loss=float(number % 7))
    whole, coarse = since(curves, run)["rows"], since(curves, run, max_bins=8)["rows"]
    smooth = dict(zip(whole["step"], whole["light"], strict=True))
    assert len(coarse["step"]) < 20
    assert [smooth[number] for number in coarse["step"]] == coarse["light"]


def test_deltas_add_up_to_the_whole(run, write, curves):
    seen, at = [], Cursor()
    for number in range(1, 301):
        step(write, number, loss=1 / number)
        if number % 50 == 0:
            write("eval", step=number, epoch=number / 50, loss=0.5, accuracy=0.25, count=10)
        if number % 7 == 0 or number == 300:
            reply = since(curves, run, at)
            assert ("reset" in reply) == (at == Cursor())
            seen += zip(*reply["rows"].values(), strict=True)
            at = cursor(reply)
    assert seen == list(zip(*since(curves, run)["rows"].values(), strict=True))
    assert since(curves, run)["test_rows"]["accuracy"] == [25.0] * 6


def test_nothing_new_is_a_small_reply(run, write, curves):
    for number in range(1, 300):
        step(write, number)
    first = ask(curves, {"runs": [{"run": run.id}]})["runs"][0]
    request = {"runs": [{key: first[key] for key in ("run", "version", "points", "tests", "seen")}]}
    reply = body(points_reply, curves, request)
    assert len(reply) < 300
    assert set(json.loads(reply)["runs"][0]) == {"run", "state", "version", "points", "tests", "elapsed"}


def test_a_reader_far_behind_gets_the_whole_thinned_history(run, write, curves):
    step(write, 1)
    first = since(curves, run)
    for number in range(2, RECENT + 10):
        step(write, number)
    reply = since(curves, run, cursor(first), max_bins=128)
    assert reply["reset"]
    assert len(reply["rows"]["step"]) <= 257
    assert reply["rows"]["step"][-1] == RECENT + 9


def test_a_resumed_run_takes_back_the_steps_after_its_checkpoint(run, write, curves):
    write("start", step=0, total_steps=100, world_size=1)
    for number in range(1, 31):
        step(write, number, loss=5.0)
    write("eval", step=30, epoch=0.3, loss=1.0, accuracy=0.9, count=10)
    before = since(curves, run)
    write("start", step=20, total_steps=100, world_size=1)
    step(write, 21, loss=3.0)
    after = since(curves, run, cursor(before))
    assert after["reset"]
    assert after["rows"]["step"] == [*range(1, 22)]
    assert after["rows"]["loss"][-1] == 3.0
    assert "test_rows" not in after
    with curves.history(run.id) as history:
        assert (history.last_step, history.best_accuracy) == (21, None)
    fresh = Curves(curves.runs_dir)  # a server that starts later reads the same
    assert since(fresh, run)["rows"] == after["rows"]


def test_a_resume_that_loses_nothing_goes_on_as_a_delta(run, write, curves):
    write("start", step=0, total_steps=100)
    step(write, 1)
    first = since(curves, run)
    write("start", step=1, total_steps=100)
    step(write, 2)
    reply = since(curves, run, cursor(first))
    assert "reset" not in reply
    assert reply["rows"]["step"] == [2]


def test_the_pause_before_a_resume_is_no_training_time(run, curves):
    lines = [
        {"kind": "start", "time": 1000.0, "step": 0},
        {"kind": "step", "time": 1060.0, "step": 10, "loss": 1.0},
        {"kind": "end", "time": 1090.0, "status": "stopped"},
        {"kind": "start", "time": 9000.0, "step": 10},
        {"kind": "step", "time": 9030.0, "step": 20, "loss": 1.0},
    ]
    run.events_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert since(curves, run)["rows"]["minutes"] == [1.0, 2.0]


def test_a_cut_file_starts_the_curves_anew(run, write, curves):
    for number in range(1, 20):
        step(write, number)
    first = since(curves, run)
    run.events_path.write_text('{"kind": "step", "time": 5, "step": 1, "loss": 9.0, "epoch": 0, "lr": 0.1}\n')
    reply = since(curves, run, cursor(first))
    assert reply["reset"]
    assert reply["rows"]["loss"] == [9.0]


def test_torn_and_strange_lines_are_stepped_over(run, write, curves):
    step(write, 1)
    with run.events_path.open("a") as file:
        file.write('nonsense\n[1]\n{"kind": 3}\n{"kind": "step"}\n{"kind": "step", "step": "x", "loss": "y"}\n')
        file.write(
            '{"kind": "step", "step": 1e400, "loss": true, "time": [], "epoch": {}}\n{"kind": "start", "step": -5}\n'
        )
        file.write('{"kind": "eval", "step": 1, "loss": NaN, "accuracy": Infinity}\n{"kind": "step", "st')
    first = since(curves, run)
    json.dumps(first, allow_nan=False)
    assert ask(curves, {"runs": [{"run": run.id}]})["runs"][0]["facts"]
    with run.events_path.open("a") as file:
        file.write('ep": 7, "epoch": 0.5, "loss": 4.0, "lr": 0.1, "time": 1}\n')
    assert since(curves, run, cursor(first))["rows"]["step"] == [7]


def test_a_loss_that_is_not_finite_is_null_and_told(run, write, curves):
    step(write, 1, loss=2.0)
    step(write, 2, loss=math.nan)
    step(write, 3, loss=math.inf)
    reply = ask(curves, {"runs": [{"run": run.id}]})["runs"][0]
    assert reply["rows"]["loss"] == [2.0, None, None]
    assert reply["rows"]["light"] == [2.0] * 3  # where the page puts its marks
    assert "not a finite number at step 2 and at 1 later point" in reply["notes"][-1]
    assert dict(reply["facts"])["Training loss"] == "not finite"


@pytest.mark.parametrize(
    "request_",
    [
        None,
        [],
        "x",
        {},
        {"runs": None},
        {"runs": {"run": 1}},
        {"runs": [None, 3, "x", [], {}]},
        {"runs": [{"run": "../../etc"}, {"run": 5}, {"run": "20260101-000000-ddp-ffff"}, {"run": "x" * 10**6}]},
        {"runs": [{"run": "20260101-000000-ddp-ffff\n"}], "bins": "many"},
        {"runs": [{}] * 1000, "bins": 10**30},
    ],
)
def test_hostile_requests_are_answered_quietly(curves, request_):
    reply = ask(curves, request_)
    assert len(reply["runs"]) <= 8
    assert all(item["state"] == "missing" for item in reply["runs"])
    assert json.loads(body(log_reply, curves, request_)) == {"text": ""}


@pytest.mark.parametrize("value", [-1, 10**30, 1.5, True, "7", None, [], {}])
def test_a_cursor_out_of_range_gets_the_whole(run, write, curves, value):
    step(write, 1)
    version = since(curves, run)["version"]
    item = {"run": run.id, "version": version, "points": value, "tests": value, "seen": value}
    reply = ask(curves, {"runs": [item], "bins": value})["runs"][0]
    assert reply["rows"]["step"] == [1]


def test_facts_travel_only_when_they_change(run, write, curves):
    write("start", step=0, total_steps=100, world_size=2, devices=["GPU 0 NVIDIA H200", "GPU 1 NVIDIA H200"])
    step(write, 50, loss=0.5)
    first = ask(curves, {"runs": [{"run": run.id}]})["runs"][0]
    assert (first["state"], first["share"], first["setup"]) == ("running", 0.5, "Single device, 2 x NVIDIA H200")
    assert dict(first["facts"]) == {
        "Epoch": "0.5 / 10",
        "Step": "50 / 100",
        "Images/s": "50",
        "Training loss": "0.5000",
        "Test accuracy": "-",
        "Best": "-",
    }
    choices = {"precision": "bf16", "memory_format": "channels_last", "threads": 1, "allocator": "freed memory kept"}
    write("start", step=50, total_steps=100, world_size=1, devices=["A CPU"], **choices)
    first = ask(curves, {"runs": [{"run": run.id}]})["runs"][0]
    assert first["setup"] == "Single device, A CPU, bf16, channels_last, 1 thread, freed memory kept"
    item = {"run": run.id, "seen": first["seen"]}
    assert "facts" not in ask(curves, {"runs": [item]})["runs"][0]
    write("warning", text="mind <b>this</b>")
    assert ask(curves, {"runs": [item]})["runs"][0]["notes"] == ["mind <b>this</b>"]


def test_ranks_that_were_found_to_hold_the_same_weights_are_told_of(run, write, curves):
    write("start", step=0, total_steps=100, world_size=2, devices=["A CPU"])
    write("eval", step=1_000, epoch=1.0, loss=1.0, accuracy=0.5, count=10, checksum="00c0ffee")
    (note,) = ask(curves, {"runs": [{"run": run.id}]})["runs"][0]["notes"]
    assert note == "All 2 ranks held the same weights at step 1,000, bit for bit (checksum 00c0ffee)."


def test_state_is_shared_and_fresh(run, write, curves):
    assert curves.state(run.id).status == RunStatus.STARTING
    write("start", step=0, total_steps=10)
    assert curves.state(run.id).status == RunStatus.RUNNING
    run.ask_to_stop()
    assert curves.state(run.id).status == RunStatus.STOPPING
    assert curves.state(run.id) is curves.state(run.id)
    write("end", status="completed", error=None)
    run.delete()
    with pytest.raises(RunError, match="there is no run"):
        curves.state(run.id)
    with pytest.raises(RunError, match="is not the id"):
        curves.state("../x")


def test_many_readers_at_once_all_get_the_whole(run, write, curves):
    whole = [[] for _ in range(6)]

    def read(seen: list) -> None:
        at = Cursor()
        while len(seen) < 400:
            reply = since(curves, run, at)
            seen += reply.get("rows", {}).get("step", [])
            at = cursor(reply)
            time.sleep(0.001)

    readers = [threading.Thread(target=read, args=(seen,), daemon=True) for seen in whole]
    for reader in readers:
        reader.start()
    for number in range(1, 401):
        step(write, number)
    for reader in readers:
        reader.join(30)
    assert whole == [[*range(1, 401)]] * 6


def test_log_shows_its_last_lines_as_plain_text(run, curves):
    run.log_path.write_bytes(b"old\n" * 100 + b"\x1b[31mred\x1b[0m\n 1 %\r 99 %\rdone \xff\n")
    text = json.loads(body(log_reply, curves, {"run": run.id}))["text"]
    assert text.splitlines()[-2:] == ["red", "done \N{REPLACEMENT CHARACTER}"]
    assert len(text.splitlines()) == 60


@pytest.mark.parametrize(
    ("seconds", "exact", "rough"),
    [(0.4, "0 s", "10 s"), (47, "47 s", "50 s"), (200, "3 min 20 s", "3 min"), (7500, "2 h 5 min", "2 h 5 min")],
)
def test_durations_read_well(seconds, exact, rough):
    assert duration(seconds) == exact
    assert duration(seconds, rough=True) == rough


def lines(*events: dict) -> str:
    """As the trainer writes them."""
    return "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)


def odd_run(count: int) -> list[dict]:
    """Steps with gaps, spikes, a clock that steps back, evaluations, warnings and two resumes."""
    random.seed(4)
    events: list[dict] = [{"kind": "start", "time": 1000.0, "step": 0, "total_steps": 10 * count}]
    step = 0
    for number in range(count):
        step += random.choice((1, 1, 1, 10))
        moment = 1000 + number / 5 - (300 if number == count // 3 else 0)
        loss = None if number % 501 == 7 else random.random() + (50 if number % 997 == 0 else 0)
        events.append({"kind": "step", "time": moment, "step": step, "epoch": step / 100, "loss": loss, "lr": 0.1})
        if number % 400 == 399:
            events.append({"kind": "eval", "time": moment, "step": step, "loss": 1.0, "accuracy": random.random()})
        if number in (count // 2, count // 2 + 900):
            step -= 700
            events.append({"kind": "start", "time": moment + 5000, "step": step})
    return events


@pytest.mark.parametrize("bins", [16, 128, 1024])
def test_read_all_at_once_a_run_is_as_if_read_line_by_line(run: Run, runs_dir: Path, bins: int):
    events = odd_run(30_000)
    slow = Curves(runs_dir)
    with run.events_path.open("w") as file:
        for event in events:
            file.write(lines(event))
            if event["kind"] != "step" or event["step"] % 10 == 0:
                file.flush()
                with slow.history(run.id):
                    pass
    with slow.history(run.id) as one_by_one, Curves(runs_dir).history(run.id) as at_once:
        for name in ("num_points", "num_tests", "num_nonfinite", "first_nonfinite", "last_step", "best_accuracy"):
            assert getattr(at_once, name) == getattr(one_by_one, name), name
        assert at_once.elapsed == pytest.approx(one_by_one.elapsed)
        assert at_once.seconds_per_step == pytest.approx(one_by_one.seconds_per_step)
        ours, theirs = (history.since(NOTHING, max_bins=bins) for history in (at_once, one_by_one))
        assert list(at_once.recent)[-1].step == events[-1]["step"] or events[-1]["kind"] != "step"
        assert len(at_once.recent) == RECENT
    assert ours["rows"].keys() == theirs["rows"].keys()
    for name, column in theirs["rows"].items():
        assert all((a is None) == (b is None) for a, b in zip(ours["rows"][name], column, strict=True)), name
        known = [[value for value in values if value is not None] for values in (ours["rows"][name], column)]
        assert known[0] == pytest.approx(known[1], rel=1e-4), name
    assert ours["test_rows"] == theirs["test_rows"]


def test_smoothing_many_at_once_equals_one_by_one():
    random.seed(5)
    values = [math.nan if random.random() < 0.05 else random.random() for _ in range(5000)]
    values[:3] = [math.nan] * 3
    one_by_one, at_once = Smoother(0.9), Smoother(0.9)
    expected = [one_by_one.add(None if math.isnan(value) else value) for value in values]
    found = np.concatenate([at_once.extend(np.array(part)) for part in (values[:1], values[1:700], values[700:])])
    for theirs, ours in zip(expected, found.tolist(), strict=True):
        assert math.isnan(ours) if theirs is None else ours == pytest.approx(theirs, rel=1e-12)


def test_an_odd_line_among_thousands_costs_nothing_but_itself(run: Run, curves: Curves):
    good = [
        {"kind": "step", "time": 1.0 + n, "step": n, "epoch": n / 100, "loss": 1.0, "lr": 0.1} for n in range(1, 301)
    ]
    for odd in ("nonsense", '{"kind":"step","step":"x"}', '{"kind":"step","time":1.0,"step":1e400,"loss":1}'):
        run.events_path.write_text(lines(*good[:150]) + odd + "\n" + lines(*good[150:]))
        assert since(Curves(curves.runs_dir), run)["rows"]["step"] == [*range(1, 301)]
    for odd in ('{"kind":"step","time":1.0,"step":150,"loss":1,"new":[7]}', '{"kind":"step","step":150}'):
        run.events_path.write_text(lines(*good[:149]) + odd + "\n" + lines(*good[150:]))
        assert since(Curves(curves.runs_dir), run)["rows"]["step"] == [*range(1, 301)]


@pytest.mark.slow
def test_a_million_steps_stay_small(run, curves):
    random.seed(3)
    with run.events_path.open("w") as file:
        for number in range(10, 1_000_001, 10):
            file.write(
                f'{{"kind":"step","time":{1.7e9 + number / 100:.3f},"step":{number},"epoch":{number / 391:.6f},'
                f'"loss":{random.random():.6f},"lr":{1e-3 * random.random():.9f}}}\n'
            )
            if number % 1000 == 0:
                file.write(f'{{"kind":"eval","time":1.7e9,"step":{number},"epoch":{number / 391},"loss":0.123456,')
                file.write(f'"accuracy":{random.random()}}}\n')
    reply = body(points_reply, curves, {"runs": [{"run": run.id}], "bins": 1024})
    assert len(reply) < 200_000
    assert 1000 < len(json.loads(reply)["runs"][0]["rows"]["step"]) <= 2049
    with curves.history(run.id) as history:
        assert len(history.recent) == RECENT
