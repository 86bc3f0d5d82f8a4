"""The Train tab in a browser: what a person sees, types and gets."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page import Server, end_runs, serve
from trainer.config import TrainConfig
from trainer.runs import Run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_runs_left(server: Server) -> Iterator[None]:
    yield
    end_runs(server.runs_dir)


def visit(page: Page, url: str) -> Page:
    page.goto(url)
    expect(page.locator("#meaning ul")).to_be_visible(timeout=60_000)
    return page


def field(page: Page, name: str):
    return page.locator(f"#field-{name} input").first


def choose(page: Page, selector: str, option: str) -> None:
    page.locator(f"{selector} input").click()
    page.get_by_role("option", name=option, exact=True).click()


def test_a_first_visit_without_cifar10_gets_generated_pictures_and_the_reason(page: Page, server: Server):
    visit(page, server.url)
    expect(field(page, "dataset")).to_have_value("shapes")
    expect(page.locator("#notice")).to_contain_text("cifar-10-python.tar.gz")
    expect(page.locator("#preset input")).to_have_value("smoke")


def test_a_preset_fills_the_form_and_an_edit_makes_it_custom(page: Page, server: Server):
    visit(page, server.url)
    choose(page, "#preset", "resnet18")
    expect(field(page, "epochs")).to_have_value("200")
    expect(field(page, "lr")).to_have_value("0.1")
    expect(page.locator("#preset")).to_contain_text("Hours on GPUs")
    field(page, "epochs").fill("30")
    expect(page.locator("#preset input")).to_have_value("custom")
    expect(page.locator("#meaning")).to_contain_text("391 steps an epoch, 11,730 in all")


def test_an_error_stands_at_its_field_and_start_starts_nothing(page: Page, server: Server):
    visit(page, server.url)
    field(page, "lr").fill("-1")
    wrong = page.locator("#field-lr.wrong")
    expect(wrong).to_contain_text("-1 must be greater than 0.")
    expect(page.locator("#field-epochs.wrong")).to_have_count(0)
    page.locator("#start").click()
    expect(page.get_by_role("alert").filter(has_text="Not started")).to_be_visible()
    expect(field(page, "lr")).to_have_value("-1")
    assert not server.runs_dir.exists() or not list(server.runs_dir.glob("2*"))
    field(page, "lr").fill("0.05")
    expect(page.locator("#field-lr.wrong")).to_have_count(0)
    expect(page.locator("#problem")).not_to_be_visible()


def test_an_error_in_a_folded_group_unfolds_it(page: Page, server: Server):
    visit(page, server.url)
    page.get_by_role("button", name="Optimisation").click()
    field(page, "momentum").fill("1.5")
    expect(page.locator("#field-momentum")).to_contain_text("1.5 must be less than 1.")
    page.get_by_role("button", name="Optimisation").click()
    expect(field(page, "momentum")).not_to_be_visible()
    page.locator("#start").click()
    expect(field(page, "momentum")).to_be_visible()
    expect(field(page, "momentum")).to_have_value("1.5")


def test_processes_appear_with_ddp_and_a_batch_that_cannot_be_shared_is_said(page: Page, server: Server):
    visit(page, server.url)
    expect(field(page, "processes")).not_to_be_visible()
    page.get_by_label("ddp", exact=True).check()
    expect(page.locator("#meaning")).to_contain_text("64 x 2 ranks = 128 pictures a step")
    expect(page.locator("#field-processes").get_by_text("ddp ranks")).to_be_visible()
    field(page, "processes").fill("3")
    expect(page.locator("#field-batch_size.wrong")).to_contain_text("the nearest is 126 or 129")


def test_typing_keeps_the_focus_while_the_page_answers(page: Page, server: Server):
    visit(page, server.url)
    field(page, "epochs").fill("")
    expect(page.locator("#field-epochs.wrong")).to_contain_text("Is empty.")
    field(page, "epochs").press_sequentially("25", delay=150)
    expect(page.locator("#field-epochs.wrong")).to_have_count(0)
    expect(field(page, "epochs")).to_be_focused()
    expect(field(page, "epochs")).to_have_value("25")


def test_a_number_that_is_half_typed_is_no_empty_field_until_it_is_left(page: Page, server: Server):
    visit(page, server.url)
    page.locator("#shell button").first.click()
    field(page, "lr").fill("")
    expect(page.locator("#field-lr.wrong")).to_contain_text("Is empty.")
    field(page, "lr").press_sequentially("2.5e", delay=50)
    expect(page.locator("#field-lr.wrong")).to_have_count(0)
    field(page, "lr").press_sequentially("-2", delay=50)
    expect(page.locator("#command textarea")).to_have_value(re.compile("--lr 0.025"))
    expect(page.locator("#field-lr.wrong")).to_have_count(0)
    field(page, "lr").fill("2")
    field(page, "lr").press_sequentially("e", delay=50)
    field(page, "lr").blur()
    expect(page.locator("#field-lr.wrong")).to_contain_text("Is empty.")


def test_settings_survive_a_reload_wrong_ones_too(page: Page, server: Server):
    visit(page, server.url)
    field(page, "epochs").fill("7")
    field(page, "batch_size").fill("0")
    page.get_by_label("ddp", exact=True).check()
    expect(page.locator("#field-batch_size.wrong")).to_be_visible()
    expect(field(page, "processes")).to_be_visible()
    visit(page, server.url)
    expect(field(page, "epochs")).to_have_value("7")
    expect(field(page, "batch_size")).to_have_value("0")
    expect(page.get_by_label("ddp", exact=True)).to_be_checked()
    expect(page.locator("#field-batch_size.wrong")).to_be_visible()
    expect(page.locator("#notice")).not_to_be_visible()


def test_everything_that_matters_is_in_sight_at_1280_by_800(page: Page, server: Server):
    visit(page, server.url)
    for selector in ("#preset", "#field-parallel", "#field-devices", "#field-epochs", "#field-batch_size"):
        expect(page.locator(selector)).to_be_in_viewport(ratio=1)
    for selector in ("#field-lr", "#start", "#stop", "#live .run-state", "#live [role=progressbar]"):
        expect(page.locator(selector)).to_be_in_viewport(ratio=1)
    expect(page.locator("#live .curve-frame")).to_be_in_viewport(ratio=0.9)
    form, view = (page.locator(selector).bounding_box() for selector in ("#form", "#view"))
    assert form
    assert view
    assert 340 <= form["width"] <= 380
    assert view["width"] > 2 * form["width"]


def test_a_phone_shows_the_run_first_and_scrolls_in_one_direction(chromium: Browser, server: Server):
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    try:
        page = visit(context.new_page(), server.url)
        view, form = (page.locator(selector).bounding_box() for selector in ("#view", "#form"))
        assert view
        assert form
        assert view["y"] + view["height"] <= form["y"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator("footer").inner_text().strip() == "Settings"
    finally:
        context.close()


def test_the_page_asks_no_other_server(page: Page, server: Server):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    visit(page, server.url)
    assert asked
    assert [url for url in asked if not url.startswith((server.url, "data:", "blob:"))] == []


def test_an_address_with_a_run_opens_it(page: Page, server: Server):
    settings = [TrainConfig(dataset="shapes", label=name) for name in ("one", "two")]
    runs = [Run.create(server.runs_dir, each, waits_here=True) for each in settings]  # the server does not start them
    for run in runs:
        run.withdraw("stopped", "for the test")
    asked, newest = sorted(runs, key=lambda run: run.id)
    visit(page, f"{server.url}?run={asked.id}")
    expect(page.locator("#live")).to_contain_text(asked.config().label)
    visit(page, f"{server.url}?run=../../etc")
    expect(page.locator("#live")).to_contain_text(newest.config().label)
    for run in runs:
        run.delete()


@pytest.mark.slow
def test_buttons_follow_the_run_in_every_tab(page: Page, chromium: Browser, server: Server):
    visit(page, server.url)
    field(page, "epochs").fill("500")
    expect(page.locator("#stop")).to_be_disabled()
    page.locator("#start").click()
    expect(page.locator("#stop")).to_be_enabled()
    expect(page.locator("#start")).to_have_text("Add to queue")
    expect(page.locator("#live .run-word")).to_have_text("Running", timeout=90_000)
    context = chromium.new_context()
    try:
        other = visit(context.new_page(), server.url)
        expect(other.locator("#stop")).to_be_enabled()
        expect(other.locator("#start")).to_have_text("Add to queue")
        other.locator("#stop").click()
        for seen in (other, page):
            expect(seen.locator("#live .run-word")).to_have_text("Stopped", timeout=60_000)
            expect(seen.locator("#start")).to_have_text("Start")
            expect(seen.locator("#stop")).to_be_disabled()
    finally:
        context.close()
