"""The main job from end to end in Chromium: start, watch, zoom, reload, more tabs, stop, go on, classify.

pytest tests/test_story.py
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.conftest import await_true
from tests.page import Server, serve
from trainer.processes import alive, tree
from trainer.run_list import iter_runs
from trainer.runs import Run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

CHART = "document.querySelector('#live .curve-chart')"
NUM_TABS = 6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path) as running:
        yield running


def steps_drawn(page: Page) -> list[float]:
    return page.evaluate(f"{CHART}?.data?.[0]?.x ?? []")


def await_growth(page: Page, times: int = 1) -> None:
    """Wait until new points were drawn, `times` times."""
    for _ in range(times):
        before = len(steps_drawn(page))
        page.wait_for_function(f"{CHART}.data[0].x.length > {before}", timeout=90_000)


def state(page: Page):
    return page.locator("#live .run-word")


def the_run(server: Server) -> Run:
    (run,) = iter_runs(server.runs_dir)
    return run


def open_tab(context: BrowserContext, url: str, strangers: list[str]) -> Page:
    page = context.new_page()
    page.on(
        "request",
        lambda request: None if request.url.startswith((url, "data:", "blob:")) else strangers.append(request.url),
    )
    page.goto(url)
    page.wait_for_selector("#live .curve-chart", state="attached", timeout=60_000)
    return page


def zoom_by_mouse(page: Page) -> list[float]:
    """Drag over the middle of the loss pane; returns the range of steps that the chart then shows."""
    box = page.locator("#live .curve-chart .nsewdrag").first.bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, y, steps=8)
    page.mouse.up()
    page.wait_for_function(f"{CHART}.layout.xaxis.autorange === false")
    return page.evaluate(f"{CHART}._fullLayout.xaxis.range")


def test_a_run_from_the_first_click_to_a_resumed_end(chromium, server: Server):
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(60_000)
    strangers: list[str] = []
    page = open_tab(context, server.url, strangers)
    expect(page.locator("#preset input")).to_have_value("smoke")
    expect(page.locator("#start")).to_have_text("Start")
    page.locator("#field-epochs input").fill("10000")  # it must be at work until it is stopped, however fast it is
    page.keyboard.press("Tab")

    clicked = time.monotonic()
    page.locator("#start").click()
    page.wait_for_function(f"({CHART}.data?.[0]?.x ?? []).length > 0", timeout=120_000)
    print(f"first point of the loss {time.monotonic() - clicked:.1f} s after the click")
    run = the_run(server)

    await_growth(page, 3)
    shown = zoom_by_mouse(page)
    await_growth(page, 3)
    assert page.evaluate(f"{CHART}._fullLayout.xaxis.range") == shown

    page.reload()
    page.wait_for_function(f"({CHART}?.data?.[0]?.x ?? []).length > 6")
    assert steps_drawn(page)[0] == 1
    expect(page.locator("#stop")).to_be_enabled()
    expect(page.locator("#start")).to_have_text("Add to queue")

    tabs = [page, *(open_tab(context, server.url, strangers) for _ in range(NUM_TABS - 1))]
    for tab in tabs:
        tab.wait_for_function(f"({CHART}?.data?.[0]?.x ?? []).length > 6")
        assert steps_drawn(tab)[0] == 1
    for tab in tabs:
        await_growth(tab)

    family = tree(run.identity())
    assert family
    tabs[1].locator("#stop").click()
    for tab in tabs:
        expect(state(tab)).to_have_text("Stopped", timeout=30_000)
        expect(tab.locator("#start")).to_have_text("Start")
    assert run.state().status == "stopped"
    await_true(lambda: not any(map(alive, family)), 15, "the end of every process of the run")
    for tab in tabs[2:]:
        tab.close()

    stopped_at = run.state().end["step"]
    page.locator("#train-on-button").click()
    page.wait_for_function(f"{CHART}.data[0].x.at(-1) > {stopped_at}", timeout=120_000)
    steps = steps_drawn(page)
    assert steps == sorted(set(steps))
    assert run.state().start["step"] == stopped_at
    page.locator("#stop").click()
    expect(state(page)).to_have_text("Stopped", timeout=30_000)

    assert not strangers
    context.close()
