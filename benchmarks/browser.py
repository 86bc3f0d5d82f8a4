"""What a person at the page waits for, and what eight of them cost a run. Needs Chromium."""

import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.conftest import CHROMIUM_FLAGS, await_true
from tests.page import Server, serve
from trainer.config import TrainConfig
from trainer.datasets.prepare import prepare
from trainer.event_reader import read_events
from trainer.stop import stop_run
from ui.supervisor import Supervisor

CHART = "document.querySelector('#live .js-plotly-plot')"
PAGES = 8
WINDOW = 15.0  # seconds that the run is watched, or not, before the other gets its turn
SETTLE = 3.0  # seconds for pages to load, or for the server to notice that they have gone


@contextmanager
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("chromium is not installed: leave the tables start and watching out with --only")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


def _prepared(directory: Path) -> None:
    """Generated pictures in the cache of the server that works in `directory`."""
    import os

    os.environ["PARALLEL_TRAINER_CACHE"] = str(directory / "cache")
    prepare(TrainConfig(dataset="shapes"), lambda _text: None)


def click_to_first_point(directory: Path, rounds: int, progress) -> dict[str, list[float]]:
    """Seconds from the click on Start until the first loss is drawn; a trainer of its own each time."""
    _prepared(directory)
    seconds: dict[str, list[float]] = {"single": [], "ddp": []}
    with chromium() as browser, serve(directory) as server:
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.goto(server.url)
        page.wait_for_selector("#start")
        page.locator("#field-epochs input").fill("10000")
        page.keyboard.press("Tab")
        for number in range(rounds):
            progress(f"start: round {number + 1} of {rounds}")
            for mode, times in seconds.items():
                times.append(_start_once(page, server, mode))
    return seconds


def _start_once(page: Page, server: Server, mode: str) -> float:
    page.locator(f"#field-parallel input[value={mode}]").check()
    page.wait_for_function("document.querySelector('#start').textContent.trim() === 'Start'")
    known = set(_run_ids(server))
    begun = time.perf_counter()
    page.locator("#start").click()
    await_true(lambda: set(_run_ids(server)) - known, 30, "the new run")
    (run_id,) = set(_run_ids(server)) - known
    page.wait_for_function(
        f"(id) => {CHART}?.closest('#live')?.innerHTML.includes(id) && ({CHART}.data?.[0]?.x ?? []).length > 0",
        arg=run_id,
        timeout=120_000,
    )
    took = time.perf_counter() - begun
    stop_run(Supervisor(server.runs_dir).run(run_id))
    return took


def _run_ids(server: Server) -> list[str]:
    return [path.name for path in server.runs_dir.glob("2*")]


def watching(directory: Path, rounds: int, progress) -> dict[str, list[float]]:
    """Pictures a second of one run while eight pages follow it, and while nobody does; they take turns."""
    _prepared(directory)
    config = TrainConfig(dataset="shapes", epochs=10_000, log_every=10, precision="fp32")
    rates: dict[str, list[float]] = {"nobody watches": [], f"{PAGES} pages watch": []}
    with chromium() as browser, serve(directory) as server:
        run = Supervisor(server.runs_dir).start(config)
        await_true(lambda: run.state().step, 120, "the first step")
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        pages = [context.new_page() for _ in range(PAGES)]
        for number in range(rounds):
            progress(f"watching: round {number + 1} of {rounds}")
            for name, address in zip(rates, ("about:blank", server.url), strict=True):
                for page in pages:
                    page.goto(address)
                pages[0].wait_for_timeout(1000 * SETTLE)
                begun = time.time()
                pages[0].wait_for_timeout(1000 * WINDOW)
                steps = [e for e in read_events(run.events_path) if e["kind"] == "step" and e["time"] >= begun]
                rates[name].append(statistics.median(event["images_per_second"] for event in steps))
        stop_run(run)
    return rates
