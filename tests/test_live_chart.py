"""The chart in a real browser, against a real server, on runs that the test writes. Needs Chromium."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.conftest import ROOT, await_true
from trainer.anatomy import steps_path
from trainer.config import TrainConfig
from trainer.events import EventWriter
from trainer.runs import Run

pytestmark = pytest.mark.browser

CHART = "#live .curve-chart"
POINTS = f"(document.querySelector('{CHART}')?.data?.[0]?.x.length ?? 0)"
RANGE = f"[...document.querySelector('{CHART}')._fullLayout.xaxis.range]"


class Script:
    """A run whose events the test writes."""

    def __init__(self, runs_dir: Path, **settings):
        self.run = Run.create(runs_dir, TrainConfig(parallel="single", **settings))
        self.run.claim()
        self.events = EventWriter(self.run.events_path)
        self.step = 0

    def start(self) -> "Script":
        self.events.write("start", step=0, total_steps=4000, world_size=1, devices=["A processor"], precision="fp32")
        return self

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step += 10
            loss = 2.3 / (1 + self.step / 500)
            rates = {"lr": 0.01, "images_per_second": 812.4}
            self.events.write("step", step=self.step, epoch=self.step / 400, loss=loss, accuracy=0.3, **rates)

    def evaluate(self, accuracy: float) -> None:
        self.events.write("eval", step=self.step, epoch=self.step / 400, loss=1.5, accuracy=accuracy, count=100)


@pytest.fixture
def script(runs_dir: Path):
    script = Script(runs_dir)
    yield script
    script.events.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def command(runs_dir: Path, port: int) -> list[str]:
    return [sys.executable, str(ROOT / "tests" / "programs" / "chart_app.py"), str(runs_dir), str(port)]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory) -> Iterator[tuple[Path, str]]:
    """One server for all tests that do not end it: starting takes longer than a test."""
    runs_dir, port = tmp_path_factory.mktemp("charts") / "runs", free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command(runs_dir, port), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/"
    try:
        await_true(lambda: answers(url), 90, "the page")
        yield runs_dir, url
    finally:
        process.kill()
        process.wait(20)


@pytest.fixture
def runs_dir(shared_server) -> Iterator[Path]:
    yield shared_server[0]
    shutil.rmtree(shared_server[0], ignore_errors=True)


@pytest.fixture
def url(shared_server) -> str:
    return shared_server[1]


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


@pytest.fixture
def complaints(page) -> list[str]:
    """Console errors, exceptions and requests to other machines."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("request", lambda request: None if is_local(request.url) else found.append(request.url))
    return found


def is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:"))


def await_points(page, count: int) -> None:
    page.wait_for_function(f"{POINTS} === {count}")


def word(page) -> str:
    return page.locator("#live .run-word").inner_text()


def drag_zoom(page) -> list[float]:
    """Zoom into a part of the loss as a reader does; returns the range in steps."""
    box = page.locator(f"{CHART} .nsewdrag").first.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
    page.mouse.up()
    page.wait_for_function(f"document.querySelector('{CHART}').layout.xaxis.autorange === false")
    return page.evaluate(RANGE)


def test_points_arrive_and_the_reader_keeps_zoom_and_hidden_curves(script, url, page, complaints):
    script.start().steps(50)
    script.evaluate(0.4321)
    page.goto(url)
    await_points(page, 50)
    assert word(page) == "Running"
    buttons = page.locator(f"{CHART} .modebar-btn").evaluate_all("buttons => buttons.map((b) => b.dataset.title)")
    assert buttons == ["Download plot as a PNG", "Zoom", "Pan", "Autoscale"], "none uploads the chart"
    assert page.locator("#live .run-facts").inner_text().split("\n")[-1] == "43.21 %"
    zoomed = drag_zoom(page)
    assert zoomed[0] > 50
    page.locator(f"{CHART} .legendtoggle").nth(2).click()
    hidden = f"document.querySelector('{CHART}')._fullData[2].visible"
    page.wait_for_function(f"{hidden} === 'legendonly'")
    for update in range(1, 4):
        script.steps(7)
        await_points(page, 50 + 7 * update)
        assert page.evaluate(RANGE) == zoomed
        assert page.evaluate(hidden) == "legendonly"
    page.evaluate("document.body.classList.toggle('dark')")
    page.get_by_label("Smoothing").first.select_option("strong")
    assert page.evaluate(RANGE) == zoomed
    assert page.evaluate(hidden) == "legendonly"
    assert not complaints


def test_a_newer_run_takes_the_place_of_one_that_is_drawn(script, url, runs_dir, page, complaints):
    script.start().steps(50)
    page.goto(url)
    await_points(page, 50)
    await_true(lambda: time.strftime("%Y%m%d-%H%M%S") > script.run.id[:15], what="the next second")
    newer = Script(runs_dir, label="the newer one").start()
    newer.steps(3)
    page.get_by_role("button", name="Follow the newest run").click()
    await_points(page, 3)
    assert page.locator("#live .run-name").inner_text() == "the newer one"
    newer.steps(4)
    await_points(page, 7)
    newer.events.close()
    assert not complaints


def test_another_x_axis_shows_the_same_part_of_the_run(script, url, page):
    script.start().steps(100)
    page.goto(url)
    await_points(page, 100)
    steps = drag_zoom(page)
    page.get_by_label("X axis").first.select_option("epoch")
    page.wait_for_function(f"document.querySelector('{CHART}').layout.xaxis.title.text === 'Epoch'")
    assert page.evaluate(RANGE) == pytest.approx([end / 400 for end in steps], rel=1e-3)
    page.get_by_label("Log loss").first.check()
    assert page.evaluate(f"document.querySelector('{CHART}')._fullLayout.yaxis.type") == "log"


def test_a_reload_shows_the_whole_curve_and_the_state_is_told(script, url, page, complaints):
    script.events.write("progress", text="Downloading CIFAR-10: 43 %")
    page.goto(url)
    page.get_by_text("Downloading CIFAR-10: 43 %").wait_for()
    assert word(page) == "Starting"
    script.start().steps(80)
    await_points(page, 80)
    said = page.get_by_label("Event")
    page.wait_for_function("document.querySelector('#said textarea, #said input').value.endsWith('is running')")
    page.reload()
    await_points(page, 80)
    script.events.write("end", status="failed", error="Rank 0: <img src=x onerror=alert(1)>", rank=0, step=800)
    reason = page.locator("#live .run-reason")
    reason.wait_for()
    assert reason.inner_text() == "Rank 0: <img src=x onerror=alert(1)>"
    page.wait_for_function("document.querySelector('#said textarea, #said input').value.endsWith('is failed')")
    assert said.input_value() == f"{script.run.id} is failed"
    assert not complaints


def test_a_loss_that_is_not_finite_is_marked(script, url, page):
    script.start().steps(20)
    script.events.write("step", step=210, epoch=0.5, loss=float("nan"), accuracy=0.1, lr=0.01, images_per_second=1.0)
    script.events.write("end", status="diverged", error="the loss is not finite", rank=None, step=210)
    page.goto(url)
    await_points(page, 21)
    marks = page.evaluate(f"document.querySelector('{CHART}').data.find((trace) => trace.name === 'Not finite')")
    assert marks["x"] == [210]
    assert marks["y"][0] > 0
    page.get_by_text("not a finite number at step 210").wait_for()
    assert word(page) == "Diverged"


def test_without_a_run_the_page_says_what_to_do(url, runs_dir, page, complaints):
    page.goto(url)
    page.get_by_text("Nothing has been trained yet").wait_for()
    assert word(page) == "No run"
    assert not complaints


def test_a_phone_shows_everything_without_sideways_scrolling(script, url, page, complaints):
    script.start().steps(30)
    script.events.write("warning", text="A long remark without an end: " + "word " * 30)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{url}?__theme=dark")
    await_points(page, 30)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    chart = page.locator(CHART).bounding_box()
    assert chart["width"] <= 390
    assert chart["y"] < 420
    colour = page.evaluate(f"document.querySelector('{CHART}').layout.font.color")
    assert re.fullmatch(r"#f\w{5}|rgb\(2\d\d.*", colour), "light words on a dark page"
    assert not complaints


def test_a_window_resized_behind_another_tab_gives_the_right_width(script, url, page):
    script.start().steps(30)
    page.goto(url)
    await_points(page, 30)
    page.get_by_role("tab", name="Compare").click()
    page.wait_for_function("document.querySelector('#compare .curve-chart')?.data?.[0]?.x.length === 30")
    page.set_viewport_size({"width": 900, "height": 800})
    page.get_by_role("tab", name="Live").click()
    width = (
        f"(() => {{ const div = document.querySelector('{CHART}'); return div._fullLayout.width - div.clientWidth }})()"
    )
    page.wait_for_function(f"{width} === 0")


def test_runs_are_laid_over_each_other(script, url, page, runs_dir, complaints):
    script.start().steps(30)
    other = Script(runs_dir, label="other").start()
    other.steps(40)
    other.evaluate(0.5)
    other.events.close()
    page.goto(url)
    page.get_by_role("tab", name="Compare").click()
    data = "document.querySelector('#compare .curve-chart')?.data"
    page.wait_for_function(f"{data}?.length === 4 && {data}.some((trace) => trace.name === 'other (single)')")
    lengths = page.evaluate(f"{data}.map((trace) => [trace.name, trace.x.length])")
    assert sorted(map(tuple, lengths)) == sorted(
        [("other (single)", 40), ("other (single)", 1), (script.run.id[16:], 30), (script.run.id[16:], 0)]
    )
    script.steps(5)
    page.wait_for_function(f"{data}?.some((trace) => trace.x.length === 35)")
    assert not complaints


def test_a_name_with_markup_is_shown_as_it_is(script, url, page, runs_dir, complaints):
    script.start().steps(3)
    named = Script(runs_dir, label="<b>x</b> & &lt;i&gt; co").start()
    named.steps(3)
    named.events.close()
    page.goto(url)
    page.get_by_role("tab", name="Compare").click()
    legend = page.locator("#compare .legendtext")
    legend.nth(1).wait_for()
    assert "<b>x</b> & &lt;i&gt; co (single)" in legend.all_text_contents()
    box = page.locator("#compare .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("#compare .hoverlayer text").filter(has_text="<b>x</b> & &lt;i&gt; co (single)").first.wait_for()
    assert not complaints


def test_the_log_is_fetched_only_while_it_is_open(script, url, page):
    script.start().steps(3)
    script.run.log_path.write_text("first\nlast <b>line</b>\n")
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.post_data or "") if "component_server" in r.url else None)
    page.goto(url)
    await_points(page, 3)
    assert not any('"log"' in body for body in asked)
    page.get_by_text("Log", exact=True).click()
    page.get_by_text("last <b>line</b>").wait_for()


def shown_by_a_server_of_its_own(script, runs_dir, start_process, page, port: int):
    """A page with 30 points, and the server's process."""
    url = f"http://127.0.0.1:{port}/"
    script.start().steps(30)
    process = start_process(*command(runs_dir, port))
    await_true(lambda: answers(url), 90, "the page")
    page.goto(url)
    await_points(page, 30)
    return process


def test_a_restarted_server_is_followed_again(script, runs_dir, start_process, page):
    port = free_port()
    process = shown_by_a_server_of_its_own(script, runs_dir, start_process, page, port)
    process.terminate()
    process.wait(20)
    page.get_by_text("Connection lost, retrying").first.wait_for()
    script.steps(5)
    start_process(*command(runs_dir, port))
    page.set_default_timeout(90_000)
    await_points(page, 35)
    page.wait_for_function("document.querySelector('#live .run-word').textContent === 'Running'")


def test_a_server_that_does_not_answer_is_said_before_it_counts_as_lost(script, runs_dir, start_process, page):
    process = shown_by_a_server_of_its_own(script, runs_dir, start_process, page, free_port())
    process.send_signal(signal.SIGSTOP)
    page.get_by_text("No answer yet, waiting").first.wait_for(timeout=20_000)
    process.send_signal(signal.SIGCONT)
    page.wait_for_function("document.querySelector('#live .run-word').textContent === 'Running'")


def test_a_run_that_is_away_and_back_is_shown_whole_again(script, url, page):
    script.start().steps(30)
    page.goto(url)
    await_points(page, 30)
    facts = page.locator("#live .run-facts").inner_text()
    assert "300" in facts
    away = script.run.path.with_name("away")
    script.run.path.rename(away)
    page.get_by_text("This run is not here").wait_for()
    away.rename(script.run.path)
    await_points(page, 30)
    page.wait_for_function("document.querySelector('#live .run-word').textContent === 'Running'")
    assert page.locator("#live .run-facts").inner_text() == facts


def test_an_idle_second_costs_little(script, url, page):
    script.start().steps(30)
    sizes: list[int] = []
    page.on("response", lambda r: sizes.append(len(r.body())) if "component_server" in r.url else None)
    page.goto(url)
    await_points(page, 30)
    await_true(lambda: page.wait_for_timeout(200) or len(sizes) >= 5, 30, "five polls")
    assert max(sizes[-2:]) < 300


def note_steps(run: Run, lateness: float) -> None:
    """Ten steps of two ranks, the second of which is late by so many seconds."""
    run.ranks_path.mkdir(exist_ok=True)
    for rank, late in enumerate((0.0, lateness)):
        moments = [0.0, 0.001 + late, 0.011 + late, 0.021 + late, 0.040 + lateness]
        moments += [moments[-1] + extra for extra in (0.005, 0.006, 0.007, 0.008)]
        rows = [[2 + index, *(9 + index + at for at in moments), 0.0, 0, 0, 0] for index in range(10)]
        steps_path(run, rank).write_bytes(np.array(rows, "<f8").tobytes())


def test_the_inside_of_a_step_is_asked_for_only_while_it_is_open_and_names_the_late_rank(script, url, page, complaints):
    script.events.write("start", step=0, total_steps=4000, world_size=2, backend="gloo", devices=["A processor"])
    script.steps(3)
    script.events.write("anatomy", step=30, steps=30, seconds=0.05, ranks=[{"forward": 0.05}] * 2)
    note_steps(script.run, lateness=0.0)
    asked = []
    page.on("request", lambda request: asked.append(1) if '"inside"' in (request.post_data or "") else None)
    page.goto(url)
    await_points(page, 3)
    summary = page.locator("#live .run-inside summary")
    assert "100 % of a step is computing" in summary.inner_text()
    assert not asked
    summary.click()
    page.wait_for_selector("#live .inside-lanes .lane")
    assert asked
    assert page.locator("#live .inside-lanes .lane").count() == 2
    assert page.locator("#live .inside-slowest").inner_text() == ""
    heads = page.locator("#live .inside-means thead th").all_inner_texts()
    assert heads == ["", "pictures", "forward", "backward", "exchange", "optimizer", "bookkeeping", "in all"]
    note_steps(script.run, lateness=0.03)
    slowest = page.locator("#live .inside-slowest")
    expect(slowest).to_have_text("Rank 1 is the slowest: the others wait 30.0 ms longer in each step.")
    assert page.locator("#live .part-waiting").count() > 0
    assert page.locator("#live .inside-means tbody tr").first.locator("td").nth(3).inner_text() == "30.0"
    summary.click()
    page.wait_for_timeout(1500)  # an answer may be under way
    before = len(asked)
    script.steps(1)
    await_points(page, 4)
    assert len(asked) == before
    assert complaints == []


def test_a_run_without_notes_says_why_there_is_nothing(script, url, page):
    script.start().steps(2)
    page.goto(url)
    await_points(page, 2)
    page.locator("#live .run-inside summary").click()
    expect(page.locator("#live .inside-empty")).to_have_text("The first steps are under way.")
    expect(page.locator("#live .inside-processes tbody tr")).to_have_count(1)
