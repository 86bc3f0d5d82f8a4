"""The queue on the page: what the buttons offer, what a waiting run says, who is followed; and a server that dies."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import await_true
from tests.page import Server, end_runs, serve
from tests.test_page import visit
from trainer.config import TrainConfig
from trainer.run_list import iter_runs
from trainer.runs import Run, event_writer

pytestmark = pytest.mark.browser

SOON = 4000  # ms; the page tells what has changed within 2 s on a machine that is not busy with tests


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("queue")) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_runs_left(server: Server) -> Iterator[None]:
    yield
    for run in iter_runs(server.runs_dir):  # the queue first, so that nothing of it starts
        if run.state().status == "queued":
            run.delete()
    end_runs(server.runs_dir)
    for run in iter_runs(server.runs_dir):
        await_true(lambda run=run: not run.state().status.living, 20, "the end of the runs")
        run.delete()


@pytest.fixture
def work(server: Server, actor) -> Callable[..., tuple[Run, Callable[[], None]]]:
    """Have somebody else train a run, holding all devices; returns it and how to end it."""

    def begin(label: str) -> tuple[Run, Callable[[], None]]:
        run = kept(server, label)
        process = actor(run, "claim", "start")

        def end() -> None:
            process.stdin.close()
            process.wait(20)

        return run, end

    return begin


def kept(server: Server, label: str) -> Run:
    """A run that the server does not start: this process is to see to it."""
    return Run.create(server.runs_dir, TrainConfig(dataset="shapes", label=label), waits_here=True)


def queue(server: Server, label: str) -> Run:
    return Run.create(server.runs_dir, TrainConfig(dataset="shapes", label=label))


def word(page: Page):
    return page.locator("#live .run-word")


def test_start_reads_add_to_queue_while_the_devices_are_busy_and_shows_the_place(server: Server, page: Page, work):
    visit(page, server.url)
    expect(page.locator("#start")).to_have_text("Start")
    busy, end = work("a <i>shell's</i> run")
    expect(word(page)).to_have_text("Running", timeout=SOON)  # nothing was shown, so it is
    expect(page.locator("#start")).to_have_text("Add to queue", timeout=SOON)
    expect(page.locator("#stop")).to_have_text("Stop")

    page.locator("#start").click()
    expect(word(page)).to_have_text("Queued", timeout=SOON)
    expect(page.locator("#live .run-left")).to_have_text("Next in the queue: waits for a <i>shell's</i> run to end")
    expect(page.locator("#stop")).to_have_text("Cancel")
    expect(page.locator("#elsewhere")).to_have_text("Show a <i>shell's</i> run")
    expect(page.locator("#others")).not_to_be_visible()
    (queued,) = (run for run in iter_runs(server.runs_dir) if run.id != busy.id)

    queue(server, "another one"), queue(server, "a third")
    expect(page.locator("#others")).to_have_text("2 more are queued", timeout=SOON)
    end()
    expect(word(page)).to_have_text("Running", timeout=60_000)  # followed without a click
    assert queued.state().status == "running"
    expect(page.locator("#stop")).to_have_text("Stop")


def test_cancel_takes_the_shown_run_out_of_the_queue_and_leaves_the_others(server: Server, page: Page, work):
    busy, _ = work("busy")
    first, second = queue(server, "first"), queue(server, "second")
    visit(page, f"{server.url}?run={second.id}")
    expect(page.locator("#live .run-left")).to_have_text("2nd in the queue: waits for busy to end")
    first.delete()
    expect(page.locator("#live .run-left")).to_have_text("Next in the queue: waits for busy to end", timeout=SOON)
    page.locator("#stop").click()
    expect(word(page)).to_have_text("Stopped", timeout=SOON)
    expect(page.locator("#live .run-left")).to_have_text("Taken out of the queue")
    expect(page.locator("#stop")).to_be_disabled()
    assert busy.state().status == "running"
    page.locator("#elsewhere").click()
    expect(page.locator("#live .run-name")).to_have_text("busy")
    expect(page.locator("#stop")).to_be_enabled()


def test_a_double_click_starts_one_run_and_two_presses_start_two(server: Server, page: Page, work):
    work("busy")
    visit(page, server.url)
    page.locator("#start").dblclick(delay=20)
    expect(word(page)).to_have_text("Queued", timeout=SOON)
    page.wait_for_timeout(500)
    page.locator("#start").click()  # impatience
    page.wait_for_timeout(1500)
    assert len(list(iter_runs(server.runs_dir))) == 2
    page.locator("#start").click()
    await_true(lambda: page.wait_for_timeout(50) or len(list(iter_runs(server.runs_dir))) == 3, 10, "the second run")


def test_an_ended_run_is_resumed_into_the_queue_while_another_trains(server: Server, page: Page, work):
    ended = kept(server, "ended")
    ended.withdraw("stopped", "for the test")
    (ended.path / "last.pt").touch()
    visit(page, f"{server.url}?run={ended.id}")
    work("busy")
    expect(page.locator("#start")).to_have_text("Add to queue", timeout=SOON)
    expect(page.locator("#more-epochs input")).to_have_value("10")
    page.locator("#train-on-button").click()
    expect(word(page)).to_have_text("Queued", timeout=SOON)
    expect(page.locator("#train-on-button")).not_to_be_visible()
    assert ended.state().status == "queued"


def test_a_run_that_is_resumed_elsewhere_is_noticed(server: Server, page: Page, work):
    ended = kept(server, "ended")
    ended.withdraw("stopped", "for the test")
    visit(page, f"{server.url}?run={ended.id}")
    expect(word(page)).to_have_text("Stopped")
    work("busy")
    page.wait_for_timeout(2500)
    ended.requeue()
    expect(word(page)).to_have_text("Queued", timeout=SOON)
    expect(page.locator("#stop")).to_have_text("Cancel", timeout=SOON)


def test_a_suspended_process_is_said_and_its_going_on_too(server: Server, page: Page, work):
    busy, _ = work("busy")
    known = busy.identity()
    assert known
    visit(page, server.url)
    os.kill(known[0], signal.SIGSTOP)
    expect(page.locator("#live .run-reason")).to_contain_text(f"kill -CONT {known[0]} lets it go on", timeout=SOON)
    os.kill(known[0], signal.SIGCONT)
    expect(page.locator("#live .run-reason")).not_to_be_visible(timeout=SOON)


def test_several_queued_runs_are_cancelled_in_the_table(server: Server, page: Page, work):
    work("busy")
    runs = [queue(server, f"waits {i}") for i in range(3)]
    visit(page, f"{server.url}?run={runs[0].id}")
    page.locator("#others").click()  # leads to the Runs tab
    for i, run in enumerate(runs):
        line = page.locator(f"tr[data-run='{run.id}']")
        expect(line.locator(".run-word")).to_have_text(f"Queued, {('1st', '2nd', '3rd')[i]}")
        line.locator("input").click()
    expect(page.locator("#run-stop")).to_have_text("Cancel 3 runs")
    page.locator("#run-stop").click()
    expect(page.locator("#run-words")).to_contain_text("3 runs were taken out of the queue.")
    for run in runs:
        expect(page.locator(f"tr[data-run='{run.id}'] .run-word")).to_have_text("Stopped", timeout=SOON)
    expect(page.locator("#run-stop")).not_to_be_visible()


@pytest.fixture
def watched(tmp_path: Path, page: Page, actor) -> Iterator[tuple[Server, Run]]:
    """A server, and a run with five points that somebody else trains and the page shows."""
    with serve(tmp_path) as first:
        run = kept(first, "goes on")
        process = actor(run, "claim", "start")
        learn(run, *range(1, 6))
        visit(page, first.url)
        page.wait_for_function(f"{DRAWN} === 5")
        expect(page.locator("#stop")).to_have_text("Stop")
        page.wait_for_timeout(1500)  # the page has asked all that it wants to know
        page.evaluate("window.isTheSamePage = true")
        yield first, run
        process.stdin.close()
        process.wait(20)


DRAWN = "(document.querySelector('#live .curve-chart')?.data?.[0]?.x ?? []).length"


def learn(run: Run, *steps: int) -> None:
    events = event_writer(run)
    for step in steps:
        events.write("step", step=step, epoch=step / 10, loss=2.0 / step, lr=0.1)
    events.close()


def kill(server: Server) -> int:
    port = server.port
    server.process.kill()
    server.wait()
    return port


def start_and_cancel(page: Page) -> None:
    page.locator("#start").click()
    expect(word(page)).to_have_text("Queued", timeout=10_000)
    page.locator("#stop").click()
    expect(word(page)).to_have_text("Stopped", timeout=10_000)
    expect(page.get_by_text("Connection Lost")).to_have_count(0)


def test_a_page_that_is_only_watched_opens_no_stream_of_events(watched, page: Page):
    """One that is open when the server dies counts as alive in Gradio's client, and no later press is answered."""
    page.get_by_role("tab", name="Compare").click()
    expect(page.get_by_text("Which mode is the fastest here?")).to_be_visible()
    names = page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert any("component_server" in name for name in names)
    assert not [name for name in names if "/queue/" in name]


def test_a_killed_server_that_comes_back_is_followed_and_obeyed_without_a_reload(watched, tmp_path: Path, page: Page):
    server, run = watched
    port = kill(server)
    expect(word(page)).to_have_text("Connection lost, retrying", timeout=10_000)
    learn(run, 6)
    with serve(tmp_path, "--port", str(port)) as again:
        assert again.url == server.url
        page.wait_for_function(f"{DRAWN} === 6", timeout=20_000)
        expect(word(page)).to_have_text("Running")
        start_and_cancel(page)
        assert page.evaluate("window.isTheSamePage")


def test_a_press_while_the_server_is_away_is_said_and_the_page_comes_back_by_itself(watched, tmp_path, page: Page):
    server, run = watched
    port = kill(server)
    page.locator("#start").click()
    expect(page.get_by_text("Connection Lost")).to_be_visible()
    learn(run, 6)
    with serve(tmp_path, "--port", str(port)) as again:
        assert again.url == server.url
        page.wait_for_function(f"{DRAWN} === 6", timeout=20_000)
        page.wait_for_function("!window.isTheSamePage")  # Gradio has loaded it anew
        expect(word(page)).to_have_text("Running", timeout=20_000)
        assert len(list(iter_runs(again.runs_dir))) == 1  # what was pressed in vain does not come later
        start_and_cancel(page)
