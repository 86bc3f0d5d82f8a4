"""What browsers are told of a race: once for all of them, and only what is new."""

import json
import time
from pathlib import Path

import pytest

from tests.test_runs_tab import make_run
from trainer.config import TrainConfig
from trainer.race import Entrant, Race, create_race
from trainer.runs import Run, event_writer
from ui import race_facts
from ui.race_facts import RaceFacts, ids_of
from ui.supervisor import Supervisor

SINGLE, DP2, DDP2 = Entrant("single", 1), Entrant("dp", 2), Entrant("ddp", 2)
SHAPES = TrainConfig(dataset="shapes", devices="cpu", max_steps=40)


@pytest.fixture
def facts(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> RaceFacts:
    monkeypatch.setattr(race_facts, "FRESH", 0.0)
    return RaceFacts(Supervisor(runs_dir))


@pytest.fixture
def race(runs_dir: Path) -> Race:
    return create_race(runs_dir, SHAPES, [SINGLE, DP2, DDP2])


def finish(run: Run, rate: float = 100.0) -> None:
    """As a trainer that is gone left it, completed."""
    record = {"pid": 1, "start": "gone", "started": time.time() - 400, "events_offset": 0}
    (run.path / "process.json").write_text(json.dumps(record))
    events = event_writer(run)
    events.write("start", step=0, devices=["AMD EPYC"], total_steps=40, world_size=1)
    for step in range(2, 41, 2):
        events.write("step", step=step, epoch=1.0, loss=2.0, images_per_second=rate)
    events.write("eval", step=40, epoch=1.0, loss=1.0, accuracy=0.5, count=10)
    events.write("end", status="completed", error=None, rank=None, step=40)
    events.close()


def test_a_queued_race_has_a_row_for_each_mode_and_the_first_run_of_each_for_the_chart(facts, race):
    answer = facts.news({"race": race.id})
    assert answer["state"] == "on"
    assert [row["state"] for row in answer["rows"]] == ["Queued", "Not possible here", "Queued"]
    assert "needs two GPUs" in answer["rows"][1]["reason"]
    assert answer["runs"] == [run.id for run in race.runs()]


def test_a_race_whose_runs_have_ended_is_done_and_measured(facts, race):
    for run, rate in zip(race.runs(), (200.0, 150.0), strict=True):
        finish(run, rate)
    answer = facts.news({"race": race.id})
    assert answer["state"] == "done"
    assert answer["headline"].startswith("single is the fastest here: 200 images/s. ddp x2 reaches 75 % of that.")


def test_what_is_shown_already_is_not_sent_again_until_it_changes(facts, race):
    first = facts.news({"race": race.id})
    again = facts.news({"race": race.id, "seen": first["seen"]})
    assert again == {"state": "on", "seen": first["seen"]}
    assert len(json.dumps(again)) < 100
    finish(race.runs()[0])
    assert "rows" in facts.news({"race": race.id, "seen": first["seen"]})


def test_what_has_not_grown_is_not_read_again(facts, race, monkeypatch):
    finish(race.runs()[0])
    facts.news({"race": race.id})
    monkeypatch.setattr(race_facts, "look_anew", lambda run, target: pytest.fail(f"{run.id} was read again"))
    assert facts.news({"race": race.id})["rows"][0]["cells"][0][0] == "100"


def test_a_look_serves_all_browsers_for_a_moment(runs_dir, race, monkeypatch):
    facts = RaceFacts(Supervisor(runs_dir))
    monkeypatch.setattr(race_facts, "FRESH", 1000.0)
    facts.news({"race": race.id})
    monkeypatch.setattr(facts, "_look", lambda *_: pytest.fail("looked again"))
    assert facts.news({"race": race.id})["state"] == "on"


@pytest.mark.parametrize("sent", ["20260101-000000-race-0000", "../../etc", "", "x" * 10_000])
def test_a_race_that_is_not_there_is_missing_with_a_reason(facts, sent: str):
    answer = facts.news({"race": sent})
    assert answer["state"] == "missing"
    assert "there is no race" in answer["reason"]
    assert len(json.dumps(answer)) < 400


@pytest.mark.parametrize(
    "request_", [{}, {"race": None}, {"race": 3}, {"race": ["x"], "runs": "x"}, {"runs": [None, "../x"]}]
)
def test_without_a_race_there_is_none(facts, request_: dict):
    assert facts.news(request_)["state"] == "none"


def test_a_damaged_race_is_missing_and_no_choice(facts, race):
    (race.path / "race.json").write_text("{")
    assert facts.news({"race": race.id})["state"] == "missing"
    assert facts.choices() == []


def test_a_race_all_of_whose_runs_were_deleted_is_missing(facts, race):
    for run in race.runs():
        finish(run)
        run.delete()
    assert facts.news({"race": race.id})["state"] == "missing"


def test_any_runs_are_laid_side_by_side(facts, runs_dir):
    one, two = make_run(runs_dir, parallel="single"), make_run(runs_dir, parallel="ddp")
    answer = facts.news({"runs": [one.id, two.id, one.id, "../../etc"]})
    assert (answer["race"], answer["state"], answer["runs"]) == (None, "done", [one.id, two.id])
    assert len(answer["rows"]) == 2


def test_runs_that_are_gone_are_left_out_and_without_any_there_is_nothing(facts, runs_dir):
    one, two = make_run(runs_dir), make_run(runs_dir)
    one.delete()
    assert facts.news({"runs": [one.id, two.id]})["runs"] == [two.id]
    two.delete()
    assert facts.news({"runs": [one.id, two.id]})["state"] == "missing"


def test_the_newest_races_are_to_choose_from(facts, race, runs_dir):
    newer = create_race(runs_dir, SHAPES.changed(label="newer"), [SINGLE, DDP2])
    (words, first), (_, second) = facts.choices()
    assert (first, second) == (newer.id, race.id)
    assert "newer, single, ddp x2" in words


def test_ids_are_kept_once_each_and_nothing_else_is():
    known = "20260101-000000-single-0000"
    assert ids_of([known, known, "..", None, 3, {}, [known]]) == [known]
    assert ids_of({"runs": [known]}) == ids_of(None) == []


def test_a_report_is_made_of_a_race_or_of_runs_and_its_absence_has_a_reason(facts, race):
    run = race.runs()[0]
    finish(run)
    made = facts.report({"race": race.id})
    assert made["name"] == f"{race.id}.html"
    assert "single" in made["html"]
    assert facts.report({"runs": [run.id]})["name"] == "runs.html"
    for sent in ({}, {"race": "../.."}, {"runs": ["../x"]}, {"runs": ["20260101-000000-single-0000"]}):
        assert set(facts.report(sent)) == {"reason"}
