"""The Compare tab in a browser: a race is started, watched, stopped, resumed and found again."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import await_true
from tests.page import Server, end_runs, serve
from tests.test_runs_tab import make_run
from trainer.race import Race, iter_races

CURVES = "document.querySelector('#race-chart .curve-chart').data?.filter((t) => t.x.length).length"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("compare")) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_runs_left(server: Server) -> Iterator[None]:
    yield
    end_runs(server.runs_dir)


def visit(page: Page, url: str) -> None:
    """Open the tab with small steps set on the Train tab: the preset of a first visit is `smoke`."""
    page.goto(url)
    expect(page.locator("#meaning ul")).to_be_visible(timeout=60_000)
    page.locator("#field-batch_size input").fill("8")
    expect(page.locator("#preset input")).to_have_value("custom")
    page.get_by_role("tab", name="Compare").click()
    expect(page.locator("#race-settings")).to_contain_text("batch 8")


def row(page: Page, mode: str):
    return page.locator(f"table.race tr[data-mode='{mode}']")


def state(page: Page):
    return page.locator(".race-top > .run-line .run-word")


def races(server: Server) -> list[Race]:
    return list(iter_races(server.runs_dir))


def test_what_cannot_be_raced_is_refused_with_the_name_of_its_field_and_nothing_starts(page: Page, server: Server):
    visit(page, server.url)
    expect(page.get_by_text("Which mode is the fastest here?")).to_be_visible()
    problem = page.locator("#race-problem")
    page.locator("#race-length input").fill("5")
    page.locator("#race-start").click()
    expect(problem).to_contain_text("Length: 5 is too short for a race")
    page.locator("#race-length input").fill("40")
    page.locator("#race-modes").get_by_label("ddp x2").uncheck()
    page.locator("#race-start").click()
    expect(problem).to_contain_text("Modes: choose two or more")
    page.locator("#race-until").get_by_label("Accuracy").check()
    expect(page.locator("#race-length input")).to_have_value("60")
    assert races(server) == []


def test_a_race_is_started_once_fills_its_table_stops_goes_on_and_has_an_address(page: Page, server: Server):
    visit(page, server.url)
    page.locator("#race-length input").fill("60")
    page.locator("#race-repeats input").fill("1")
    page.locator("#race-start").dblclick()
    expect(row(page, "single")).to_contain_text(re.compile("Starting|Running"), timeout=60_000)
    expect(row(page, "ddp x2")).to_contain_text("Queued")
    (race,) = races(server)
    assert [run.config().max_steps for run in race.runs()] == [60, 60]

    page.locator("#race-stop").click()
    expect(state(page)).to_have_text("Stopped", timeout=60_000)
    expect(page.locator("#race-stop")).to_be_disabled()

    page.reload()
    expect(page.locator("#meaning ul")).to_be_visible(timeout=60_000)
    page.get_by_role("tab", name="Compare").click()
    expect(row(page, "ddp x2")).to_contain_text("Stopped")
    page.locator("#race-resume").click()
    expect(state(page)).to_have_text("Racing")
    expect(state(page)).to_have_text("Done", timeout=180_000)
    expect(page.locator("#race-resume")).not_to_be_visible()
    expect(row(page, "ddp x2")).to_contain_text("Done")
    expect(page.locator(".race-headline")).to_contain_text("Measured once")
    expect(page.locator(".race-verdicts li")).to_have_count(2)
    expect(page.locator(".race-verdicts li").first).to_contain_text(re.compile(r"single: \d+ % of a step is"))
    speed = row(page, "single").locator("td.number").first
    assert float(speed.inner_text().replace(",", "")) > 0

    with page.expect_download() as downloading:
        page.get_by_role("button", name="Save report").click()
    assert downloading.value.suggested_filename == f"{race.id}.html"
    assert "Measured once" in Path(downloading.value.path()).read_text()
    link = page.locator(".race-link").get_attribute("href")
    assert link == f"?race={race.id}"
    page.goto(server.url + link)
    expect(row(page, "single")).to_contain_text("Done", timeout=60_000)
    page.wait_for_function(f"{CURVES} >= 4")


def test_a_lesson_shows_a_mode_as_it_is_beside_what_was_done_to_it(page: Page, server: Server):
    visit(page, server.url)
    page.locator("#race-length input").fill("40")
    page.locator("#race-repeats input").fill("1")
    page.locator("#race-modes").get_by_label("single").uncheck()
    page.locator("#race-lesson input").click()
    page.get_by_role("option", name="The last rank 30 ms late").click()
    page.locator("#race-start").click()
    changed = row(page, "ddp x2 (slow_ms 30)")
    expect(changed).to_contain_text("Done", timeout=180_000)
    expect(changed.locator("td.number").nth(2)).to_contain_text(re.compile(r"\d\.\d\dx"))
    expect(row(page, "ddp x2").locator("td.number").nth(2)).to_contain_text("1.00x")
    expect(page.locator(".race-verdicts li").nth(1)).to_contain_text(re.compile("Rank 1 holds|% of a step is"))
    assert [run.config().slow_ms for run in races(server)[0].runs()] == [0, 30]


def test_an_address_of_a_race_that_is_gone_opens_the_page_as_ever(page: Page, server: Server):
    page.goto(f"{server.url}?race=20260101-000000-race-0000")
    expect(page.locator("#meaning ul")).to_be_visible(timeout=60_000)


def test_any_runs_are_compared_from_the_runs_tab(page: Page, server: Server):
    one = make_run(server.runs_dir, label="one", parallel="single")
    two = make_run(server.runs_dir, label="two", parallel="ddp")
    page.goto(server.url)
    page.get_by_role("tab", name="Runs").click()
    page.locator(f"tr[data-run='{one.id}'] input").click()
    expect(page.locator("#run-words")).to_contain_text("one, completed")
    expect(page.locator("#run-speeds")).not_to_be_visible()
    page.locator(f"tr[data-run='{two.id}'] input").click()
    page.locator("#run-speeds").click()
    expect(page.locator(".race-title")).to_contain_text("2 runs side by side")
    await_true(lambda: page.locator("table.race tbody tr").count() == 2, what="a row for each mode")
    expect(page.locator(".race-link")).not_to_be_visible()
