"""A server with one living run and eight pages for half an hour: python -m tests.soak [--minutes 30] [--pages 8].

Prints each minute the memory of the server and of one page, and the ticks of all pages; in the middle the server is
killed and started again on its port. Leaves with 1 if memory grew by more than 5 % after the first minutes of each of
the two servers, or if a page stood still. What is compared are the peaks of a window: a page takes up points until it
holds some thousands, then has them thinned again, so its memory goes up and down.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import psutil
from playwright.sync_api import BrowserContext, Page, sync_playwright

from tests.conftest import CHROMIUM_FLAGS, await_true
from tests.page import serve
from trainer.config import TrainConfig
from trainer.stop import stop_run
from ui.supervisor import Supervisor

SETTLED = 3  # minutes after which memory must stand still
WINDOW = 5  # minutes of which the peak is taken
GROWTH = 1.05
COLLECTIONS = 4
MIN_TICKS = 40  # a minute and page; a tick a second is aimed at


class Watcher:
    """One page that follows the run, and how often it asked."""

    def __init__(self, context: BrowserContext, url: str):
        self.page: Page = context.new_page()
        self.ticks = 0
        self.page.on("request", self._count)
        self.page.goto(url)
        self.page.wait_for_selector("#live .run-word", timeout=60_000)
        self._cdp = context.new_cdp_session(self.page)

    def _count(self, request) -> None:
        if request.method == "POST" and "component_server" in request.url:
            self.ticks += 1

    def take_ticks(self) -> int:
        ticks, self.ticks = self.ticks, 0
        return ticks

    def heap(self) -> float:
        """MB that stay in use: the least of some collections of garbage, as one may fall into a redrawing."""
        used = []
        for _ in range(COLLECTIONS):
            self._cdp.send("HeapProfiler.collectGarbage")
            used.append(self._cdp.send("Runtime.getHeapUsage")["usedSize"] / 1e6)
            self.page.wait_for_timeout(300)
        return min(used)

    def step(self) -> str:
        return self.page.locator("#live .run-facts dd").nth(1).inner_text()


def minutes(watchers: list[Watcher], server, count: int, first: int) -> list[tuple[float, float, int]]:
    """Watch for `count` minutes. Returns (server MB, page MB, fewest ticks of a page) of each."""
    rows = []
    for minute in range(first, first + count):
        for watcher in watchers:
            watcher.take_ticks()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            watchers[0].page.wait_for_timeout(1000)  # also lets Playwright count what all pages ask
        ticks = [watcher.take_ticks() for watcher in watchers]
        memory = psutil.Process(server.process.pid).memory_info().rss / 1e6
        heap = watchers[0].heap()
        rows.append((memory, heap, min(ticks)))
        print(
            f"minute {minute + 1}: server {memory:.1f} MB, page {heap:.2f} MB, "
            f"ticks {min(ticks)} to {max(ticks)}, step {watchers[-1].step()}",
            flush=True,
        )
    return rows


def judge(rows: list[tuple[float, float, int]], name: str) -> list[str]:
    settled = rows[SETTLED:] or rows[-1:]
    early, late = settled[:WINDOW], settled[-WINDOW:]
    faults = []
    for column, what in ((0, "the server"), (1, "a page")):
        first, last = (max(row[column] for row in window) for window in (early, late))
        print(f"{name}: {what} {first:.1f} MB -> {last:.1f} MB ({100 * (last / first - 1):+.1f} %)")
        if last > first * GROWTH:
            faults.append(f"{name}: {what} grew from {first:.1f} to {last:.1f} MB")
    slowest = min(row[2] for row in rows)
    print(f"{name}: at least {slowest} ticks a minute on every page")
    if slowest < MIN_TICKS:
        faults.append(f"{name}: a page asked only {slowest} times in a minute")
    return faults


def soak(directory: Path, num_minutes: int, num_pages: int) -> list[str]:
    config = TrainConfig(dataset="shapes", epochs=10_000, batch_size=8, log_every=1, precision="fp32", label="soak")
    half = num_minutes // 2
    with sync_playwright() as playwright, serve(directory) as server:
        run = Supervisor(server.runs_dir).start(config)
        await_true(lambda: run.state().step, 120, "the first step")
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        watchers = [Watcher(context, server.url) for _ in range(num_pages)]
        faults = judge(minutes(watchers, server, half, 0), "before the restart")
        port = str(server.port)
        server.process.kill()
        server.wait()
        print("the server was killed", flush=True)
        with serve(directory, "--port", port) as second:
            assert second.url
            began, before = time.monotonic(), [watcher.step() for watcher in watchers]
            while any(watcher.step() == old for watcher, old in zip(watchers, before, strict=True)):
                if time.monotonic() - began > 60:
                    faults.append("after the restart a page did not recover within 60 s")
                    break
                watchers[0].page.wait_for_timeout(200)
            print(f"all pages go on {time.monotonic() - began:.1f} s after the server is back", flush=True)
            faults += judge(minutes(watchers, second, num_minutes - half, half), "after the restart")
            stop_run(run)
        browser.close()
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--pages", type=int, default=8)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        faults = soak(directory, arguments.minutes, arguments.pages)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(faults) or "steady")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
