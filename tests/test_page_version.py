"""A page that stays open while its server is updated or gets a password does nothing wrong and says what to do."""

import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page import serve
from tests.test_page import visit
from trainer.config import TrainConfig
from trainer.runs import Run
from ui.page_version import version_of

SOON = 15_000  # ms


@pytest.fixture
def ended(runs_dir: Path) -> Run:
    """A run that could be deleted."""
    run = Run.create(runs_dir, TrainConfig(dataset="shapes", label="mine"))
    run.withdraw("stopped", "for the test")
    return run


def as_from_another_version(route: Route) -> None:
    route.continue_(headers={**route.request.headers, "x-page-version": "00000000"})


def asked(url: str, version: str | None, path: str = "config") -> int:
    headers = {} if version is None else {"x-page-version": version}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", headers=headers), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_what_a_page_of_another_version_sends_is_refused_and_programs_are_served(tmp_path: Path):
    with serve(tmp_path) as server:
        assert asked(server.url, "00000000") == 409
        assert asked(server.url, None) == 200
        assert asked(server.url, "00000000", "gradio_api/app_id") == 200  # by which Gradio sees that it must reload


def test_fields_that_changed_places_are_another_version():
    def version(*names: str) -> str:
        fields = [{"id": i, "type": "number", "props": {"elem_id": name}} for i, name in enumerate(names)]
        page = SimpleNamespace(config={"components": fields, "dependencies": []})
        return version_of(page)  # type: ignore[arg-type]

    assert version("lr", "momentum") == version("lr", "momentum") != version("momentum", "lr")


@pytest.mark.browser
def test_a_page_of_another_version_deletes_nothing_and_offers_to_reload(page: Page, tmp_path: Path, ended: Run):
    with serve(tmp_path, "--runs-dir", str(ended.path.parent)) as server:
        visit(page, server.url)
        page.get_by_role("tab", name="Runs").click()
        page.get_by_label("Select mine").check()
        expect(page.get_by_role("button", name="Delete")).to_be_enabled(timeout=SOON)
        page.route("**/gradio_api/**", as_from_another_version)
        page.get_by_role("button", name="Delete").click()
        expect(page.locator(".page-outdated")).to_contain_text("The server was updated", timeout=SOON)
        expect(page.locator(".runs-note")).to_contain_text("reload the page", timeout=SOON)
        expect(page.get_by_role("button", name="Keep")).not_to_be_visible()
        assert ended.path.exists()
        page.unroute_all()
        page.locator(".page-outdated button").click()
        expect(page.locator("#live")).to_be_visible(timeout=60_000)
        expect(page.locator(".page-outdated")).to_have_count(0)


@pytest.mark.browser
def test_a_page_that_is_logged_out_says_so(page: Page, tmp_path: Path):
    with serve(tmp_path) as server:
        visit(page, server.url)
        port = str(server.port)
        server.process.terminate()
        server.wait()
        with serve(tmp_path, "--port", port, PARALLEL_TRAINER_AUTH="me:secret") as again:
            assert again.url
            told, login = page.locator(".page-outdated"), page.get_by_role("button", name="Login")
            expect(told.or_(login)).to_be_visible(timeout=30_000)  # Gradio reloads the page where it asks first
            if told.is_visible():
                expect(told).to_contain_text("not logged in")
                told.locator("button").click()
            expect(login).to_be_visible(timeout=SOON)
