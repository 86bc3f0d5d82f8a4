"""Runs: all runs in one table whoever started them, and what can be done with those that are selected."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import expect

from tests.conftest import await_true
from tests.page import Server, serve
from trainer.config import TrainConfig
from trainer.runs import Run, event_writer
from ui.run_actions import TEACHING, RunActions, ids_of
from ui.run_facts import devices
from ui.run_table import RunRows
from ui.supervisor import Supervisor
from ui.waiting import Board, Waiting, in_words, ordinal


def make_run(runs_dir: Path, status: str | None = "completed", label: str = "", epochs: int = 3, **settings) -> Run:
    """A run that has done 3 epochs, as a trainer that is gone left it; without `status` it was cut short."""
    run = Run.create(runs_dir, TrainConfig(dataset="shapes", label=label, epochs=epochs, **settings))
    record = {"pid": 1, "start": "gone", "started": time.time() - 400, "events_offset": 0}
    (run.path / "process.json").write_text(json.dumps(record))
    events = event_writer(run)
    events.write("start", step=0, devices=["GPU 0 NVIDIA H200", "GPU 1 NVIDIA H200"], total_steps=30)
    for epoch in (1, 2, 3):
        events.write("step", step=10 * epoch, epoch=float(epoch), loss=2.0 / epoch, images_per_second=41_234.5)
        events.write("eval", step=10 * epoch, epoch=float(epoch), loss=1.0, accuracy=0.3 * epoch, count=10)
    if status:
        events.write("end", status=status, error="rank 1 was killed" if status == "failed" else None, rank=1, step=30)
    events.close()
    (run.path / "last.pt").touch()
    return run


@pytest.fixture
def actions(runs_dir: Path) -> RunActions:
    return RunActions(Supervisor(runs_dir), Board(runs_dir))


def value(*runs: Run) -> dict:
    return {"runs": [run.id for run in runs]}


def words(panel: list) -> str:
    return panel[0]


# The table


def test_a_row_has_state_name_mode_devices_accuracy_speed_epochs_and_times(runs_dir):
    run = make_run(runs_dir, label="mine", parallel="ddp")
    (row,) = RunRows(Board(runs_dir)).since({})["rows"]
    assert (row["id"], row["name"], row["state"], row["mode"]) == (run.id, "mine", "completed", "ddp")
    assert (row["devices"], row["best"], row["speed"]) == ("2 x NVIDIA H200", pytest.approx(0.9), 41_234.5)
    assert (row["epoch"], row["epochs"]) == (3.0, 3)
    assert 399 < row["ended"] - row["started"] < 410


def test_devices_are_named_without_their_numbers_and_counted():
    assert devices(["GPU 0 NVIDIA H200", "GPU 1 NVIDIA H200"], "auto") == "2 x NVIDIA H200"
    assert devices(["AMD EPYC"], "cpu") == "AMD EPYC"
    assert devices(None, "0,1") == "0,1"


def test_the_page_gets_only_the_rows_that_changed(runs_dir, monkeypatch):
    monkeypatch.setattr("ui.run_table.FRESH", 0)
    rows = RunRows(Board(runs_dir))
    older, newer = make_run(runs_dir), make_run(runs_dir, None)
    first = rows.since({})
    assert first["order"] == sorted((older.id, newer.id), reverse=True)
    cursor = {"version": first["version"], "server": first["server"]}
    same = rows.since(cursor)
    assert same["rows"] == []
    assert "order" not in same
    newer.write_config(newer.config().changed(label="named"))
    changed = rows.since(cursor)
    assert [row["name"] for row in changed["rows"]] == ["named"]
    assert "order" not in changed
    older.delete()
    assert rows.since(cursor)["order"] == [newer.id]


def test_a_page_of_another_server_gets_everything(runs_dir):
    make_run(runs_dir)
    for cursor in ({"version": 99, "server": "other"}, {"version": "x"}, {"version": True, "server": None}):
        assert len(RunRows(Board(runs_dir)).since(cursor)["rows"]) == 1


def test_a_run_with_settings_of_another_version_does_not_hide_the_others(runs_dir):
    make_run(runs_dir)
    (make_run(runs_dir).path / "config.json").write_text('{"unknown": 1}')
    bad, good = RunRows(Board(runs_dir)).since({})["rows"]
    assert bad["about"].startswith("its settings cannot be read")
    assert good["about"].startswith("tutorial on ")


def test_a_runs_directory_that_cannot_be_read_is_not_shown_as_an_empty_one(tmp_path):
    (tmp_path / "file").write_text("")
    reply = RunRows(Board(tmp_path / "file")).since({})
    assert reply == {"trouble": f"The runs in {tmp_path / 'file'} cannot be read: Not a directory"}
    assert RunRows(Board(tmp_path / "nothing yet")).since({})["rows"] == []


def test_no_more_than_the_newest_are_listed_and_the_rest_is_counted(runs_dir, monkeypatch):
    monkeypatch.setattr("ui.run_table.LISTED", 2)
    for _ in range(3):
        make_run(runs_dir)
    reply = RunRows(Board(runs_dir)).since({})
    assert (len(reply["rows"]), reply["more"]) == (2, 1)


# Actions


@pytest.mark.parametrize("sent", [None, 3, {}, {"runs": "x"}, {"runs": [None, 7, "../..", ["a"], {}]}])
def test_what_a_browser_sends_names_only_runs(sent):
    assert ids_of(sent) == []


def test_without_a_selection_it_teaches(actions):
    assert TEACHING in words(actions.show([]))
    assert TEACHING in words(actions.pick(SimpleNamespace(_data={"runs": []}))[1:])


def test_a_run_that_failed_says_why(actions, runs_dir):
    run = make_run(runs_dir, "failed", label="<b>bold</b>")
    shown = words(actions.show([run.id]))
    assert "failed: rank 1 was killed" in shown
    assert "<b>" not in shown


def test_renaming_changes_the_label_and_refuses_what_the_settings_refuse(actions, runs_dir):
    run = make_run(runs_dir)
    assert "Renamed: better." in words(actions.rename(value(run), "better")[1:])
    assert run.config().label == "better"
    for bad in ("x" * 65, None, "line\nbreak"):
        assert "Not done" in words(actions.rename(value(run), bad)[1:])
    assert run.config().label == "better"


def test_deleting_asks_first_and_takes_all_that_is_selected(actions, runs_dir):
    one, two = make_run(runs_dir, label="one"), make_run(runs_dir)
    visible, question = actions.ask_to_delete(value(one))
    assert visible["visible"]
    assert "Delete one with" in question
    assert one.path.exists()
    compared, _, *panel = actions.delete(value(one, two))
    assert compared == {"runs": []}
    assert "Deleted 2 runs." in words(panel)
    assert not one.path.exists()
    assert not two.path.exists()


def test_a_living_run_is_never_deleted(actions, runs_dir):
    run = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    run.claim()  # by this very process
    compared, _, *panel = actions.delete(value(run))
    assert compared == value(run)
    assert "is running: stop it first" in words(panel)
    assert run.path.exists()


def wait_behind(run: Run, count: int) -> list[Run]:
    """Queue so many runs behind one that this very process has claimed."""
    run.claim(("cpu",))
    return [Run.create(run.path.parent, TrainConfig(dataset="shapes", label=f"waits {i}")) for i in range(count)]


def button(panel: list) -> tuple:
    """Stop or Cancel: (word, shown, can be pressed)."""
    return panel[3]["value"], panel[3]["visible"], panel[3]["interactive"]


def test_a_queued_run_says_its_place_and_can_be_cancelled(actions, runs_dir):
    living = Run.create(runs_dir, TrainConfig(dataset="shapes", label="<i>busy</i>"))
    first, second = wait_behind(living, 2)
    rows = {row["id"]: row for row in RunRows(Board(runs_dir)).since({})["rows"]}
    assert [(rows[run.id]["state"], rows[run.id]["place"]) for run in (living, first, second)] == [
        ("starting", None),
        ("queued", "1st"),
        ("queued", "2nd"),
    ]
    panel = actions.show([second.id])
    assert "2nd in the queue: waits for &lt;i&gt;busy&lt;/i&gt; to end" in words(panel)
    assert button(panel) == ("Cancel", True, True)
    assert "waits 1 was taken out of the queue." in words(actions.stop(value(second))[1:])
    assert second.state().status == "stopped"
    assert first.state().status == "queued"


def test_several_queued_runs_are_cancelled_together_and_the_others_left_alone(actions, runs_dir):
    living = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    queued, done = wait_behind(living, 3), make_run(runs_dir)
    assert button(actions.show([run.id for run in queued])) == ("Cancel 3 runs", True, True)
    assert button(actions.show([living.id, *(run.id for run in queued)])) == ("Stop 4 runs", True, True)
    assert button(actions.show([done.id]))[1] is False
    assert "3 runs were taken out of the queue." in words(actions.stop(value(*queued, done))[1:])
    assert {str(run.state().status) for run in queued} == {"stopped"}
    assert done.state().status == "completed"


def test_deleting_a_queued_run_takes_it_out_of_the_queue(actions, runs_dir):
    living = Run.create(runs_dir, TrainConfig(dataset="shapes"))
    first, second = wait_behind(living, 2)
    panel = actions.show([first.id, second.id])
    assert panel[4]["visible"]
    assert actions.show([first.id, living.id])[4]["visible"] is False
    actions.delete(value(first, second))
    assert actions.supervisor.queued() == []
    assert not first.path.exists()


@pytest.mark.parametrize(("place", "said"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (22, "22nd")])
def test_places_are_said_as_people_say_them(place: int, said: str):
    assert ordinal(place) == said


def test_what_a_run_waits_for_is_named_and_many_are_counted(runs_dir):
    runs = tuple(Run.create(runs_dir, TrainConfig(label=f"r{i}")) for i in range(5))
    assert in_words(Waiting(1, runs[:1])) == "Next in the queue: waits for r0 to end"
    assert in_words(Waiting(2, runs[:2])) == "2nd in the queue: waits for r0 and r1 to end"
    assert in_words(Waiting(3, runs)) == "3rd in the queue: waits for r0, r1 and 3 more to end"
    assert in_words(Waiting(1, ())) == "Next in the queue: starts in a moment"


def test_training_on_prefills_the_rest_or_as_much_again_and_words_a_refusal(actions, runs_dir):
    done, cut = make_run(runs_dir), make_run(runs_dir, None, epochs=10)
    assert (done.state().suggested_epochs(), cut.state().suggested_epochs()) == (6, 10)
    for bad in (3, None, 2.5, "x"):
        assert "Not done" in words(actions.resume(value(done), bad)[1:])
    assert done.config().epochs == 3


def test_actions_need_a_run_that_is_there_and_fits(actions, runs_dir):
    one, two = make_run(runs_dir), make_run(runs_dir)
    gone = {"runs": ["20200101-000000-ddp-0000"]}
    for selected in (value(one, two), value(one), {"runs": []}, gone, None):
        assert "Not done" in words(actions.stop(selected)[1:])
    for selected in (value(one, two), {"runs": []}, gone, None):
        assert "Not done" in words(actions.rename(selected, "x")[1:])


# In the page


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("runs")) as running:
        yield running


@pytest.mark.browser
@pytest.mark.timeout(300)
def test_runs_are_listed_compared_renamed_reused_and_deleted_in_the_page(server, page):
    page.goto(server.url)
    page.get_by_role("tab", name="Runs").click()
    expect(page.get_by_text("No run yet")).to_be_visible()
    first = make_run(server.runs_dir, label="one", lr=0.125)
    second = make_run(server.runs_dir, "failed", label="two")
    rows = page.locator("table.runs tbody tr")
    expect(rows).to_have_count(2)  # without a reload: as if a shell had started them
    page.locator(f"tr[data-run='{first.id}']").click()
    expect(page.locator("#run-words")).to_contain_text("one, completed")
    page.locator(f"tr[data-run='{second.id}'] input").click()
    expect(page.locator("#run-words")).to_contain_text("2 runs selected")
    page.wait_for_function(
        "document.querySelector('#compare .curve-chart').data?.filter((t) => t.x.length).length >= 4"
    )

    page.locator(f"tr[data-run='{first.id}']").click()
    page.locator("#run-name input").fill("renamed")
    page.locator("#run-rename").click()
    expect(page.locator(f"tr[data-run='{first.id}']")).to_contain_text("renamed")
    page.locator("#run-settings").click()
    expect(page.locator("#field-lr input")).to_have_value("0.125")

    page.get_by_role("tab", name="Runs").click()
    page.locator("#run-open").click()
    expect(page.locator("#live .run-name")).to_contain_text("renamed")

    page.get_by_role("tab", name="Runs").click()
    page.locator("#run-delete").click()
    page.locator("#run-really").click()
    expect(rows).to_have_count(1)
    assert not first.path.exists()
    await_true(lambda: "Deleted 1 run." in page.locator("#run-words").inner_text(), what="the word of the deletion")
