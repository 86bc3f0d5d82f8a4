"""What more devices would bring, on the page: measured for real, refused where it cannot be."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.page import Server, end_runs, serve
from tests.test_forecast import CPU
from trainer.calibration import Calibration
from trainer.config import ConfigError, TrainConfig
from trainer.forecast import Network, forecast
from trainer.runs import RunError
from ui.forecast_panel import _network, as_html, calibrate, headline

CONFIG = TrainConfig(dataset="shapes", batch_size=128)
GPUS = Calibration.model_validate({**CPU.model_dump(), "is_cpu": False, "device": "H200"})


def text(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html)


def test_both_tables_the_sentences_and_what_they_rest_on_are_there():
    html = as_html(CPU, CONFIG, Network(gbit=25))
    assert html.count("<table") == 2
    assert "ddp x8 *" in html
    assert "125 machines *" in html
    assert "8 ranks on these cores would train" in text(html)
    assert "over 25 Gbit/s" in text(html)
    assert "none of it is hidden behind backward" in text(html)


def test_machines_of_gpus_are_as_wide_as_the_one_that_was_measured():
    html = text(as_html(GPUS, CONFIG, Network()))
    assert "Machines of 4 such GPUs" in html
    assert "500 devices would train" in html


def test_a_batch_that_more_ranks_cannot_share_leaves_them_out():
    html = as_html(CPU, CONFIG.changed(batch_size=6), Network())
    assert "ddp x2" in html
    assert "ddp x4" not in html


def test_one_device_says_that_there_was_nothing_to_exchange_with():
    alone = Calibration.model_validate(
        {**GPUS.model_dump(), "compute": [p for p in GPUS.model_dump()["compute"] if p["ranks"] == 1], "exchange": []}
    )
    assert headline(forecast(alone, 128, [1]), is_cpu=False).startswith("One device only")
    assert "One device only" in as_html(alone, CONFIG, Network())


@pytest.mark.parametrize("gbit", [None, 0, -1, float("nan"), float("inf"), "x" * 10_000, [25], {"a": 1}, 10**9])
def test_a_network_that_is_none_is_refused_by_its_name(gbit):
    with pytest.raises(ConfigError) as caught:
        _network(gbit)
    assert set(caught.value.errors) == {"network"}
    assert len(caught.value.errors["network"]) < 200


def test_what_the_command_refuses_is_told_in_its_words():
    with pytest.raises(RunError, match="devices"):
        calibrate(CONFIG.changed(devices="7"), [])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("forecast")) as running:
        yield running


@pytest.mark.browser
@pytest.mark.slow
def test_a_press_measures_and_shows_and_is_refused_beside_a_run(page: Page, server: Server):
    page.goto(server.url)
    expect(page.locator("#meaning ul")).to_be_visible(timeout=60_000)
    page.locator("#field-batch_size input").fill("8")
    expect(page.locator("#preset input")).to_have_value("custom")
    page.get_by_role("tab", name="Compare").click()
    page.get_by_role("button", name="What would more devices bring?").click()
    press = page.locator("#forecast-press")
    page.locator("#forecast-gbit input").fill("0")
    press.click()
    expect(page.locator("#forecast-problem")).to_contain_text("Network: 0: should be greater than 0", timeout=30_000)
    page.locator("#forecast-gbit input").fill("10")
    press.click()
    expect(press).to_be_disabled()
    expect(page.locator("#forecast-answer table")).to_have_count(2, timeout=200_000)
    expect(page.locator("#forecast-answer")).to_contain_text("over 10 Gbit/s")
    expect(press).to_be_enabled()
    expect(page.locator("#forecast-problem")).not_to_be_visible()

    page.get_by_role("tab", name="Train").click()
    page.locator("#field-epochs input").fill("500")
    page.locator("#start").click()
    expect(page.locator("#stop")).to_be_enabled()
    page.get_by_role("tab", name="Compare").click()
    press.click()
    expect(page.locator("#forecast-problem")).to_contain_text("is at work, and measuring beside it says nothing")
    end_runs(server.runs_dir)
