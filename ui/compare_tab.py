"""The Compare tab: race the modes against each other at the left, what came of it at the right."""

import time
from collections.abc import Mapping
from html import escape
from typing import Any

import gradio as gr

from trainer.config import ConfigError
from trainer.runs import RunError
from ui import widgets
from ui.curves import Curves
from ui.forecast_panel import ForecastPanel
from ui.form import Form
from ui.live_chart import MAX_RUNS, CompareRuns
from ui.race_facts import RaceFacts, ids_of
from ui.race_form import RaceForm, in_words, read, settings_note
from ui.race_table import race_table
from ui.run_buttons import DOUBLE_CLICK, alert
from ui.supervisor import Supervisor

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_AT_ONCE: dict[str, Any] = {**_QUIET, "queue": False}  # for the reason that train_tab.py gives


class CompareTab:
    """Builds the tab inside the current Blocks; `wire()` connects it. `form` is that of the Train tab."""

    def __init__(self, supervisor: Supervisor, curves: Curves, form: Form):
        self.supervisor = supervisor
        self.train_form = form
        self.facts = RaceFacts(supervisor)
        with gr.Row(elem_id="race", equal_height=False):
            with gr.Column(elem_id="race-form"):
                self.form = RaceForm(form.gpus)
                with gr.Row(elem_classes=["fields"]):
                    self.start = gr.Button("Start race", variant="primary", min_width=80, elem_id="race-start")
                    self.stop = gr.Button("Stop", interactive=False, min_width=80, elem_id="race-stop")
                self.resume = gr.Button("Go on", visible=False, min_width=80, elem_id="race-resume")
                self.problem = gr.HTML("", visible=False, elem_id="race-problem", padding=False)
                self.note = gr.HTML("", elem_id="race-settings", padding=False)
            with gr.Column(elem_id="race-view"):
                self.past = widgets.Dropdown([], label="Race", visible=False, filterable=False, elem_id="race-past")
                self.table = race_table(self.facts)
                self.chart = CompareRuns(curves, elem_id="race-chart")
                self.forecast = ForecastPanel(supervisor, form)

    @property
    def _told(self) -> list[Any]:
        """What follows the shown race, in the order of `_show`."""
        return [self.past, self.stop, self.resume, self.chart]

    def wire(self, page: gr.Blocks, tab: gr.Tab, tabs: gr.Tabs) -> None:
        """Connect the events; called when the whole page is built."""
        settings, form = self.train_form.inputs, self.form
        shown = [self.problem, self.table, *self._told]
        form.kind.input(form.on_kind, form.kind, form.length, **_AT_ONCE)
        tab.select(self._on_open, [self.table, *settings], [self.note, self.table, *self._told], **_AT_ONCE)
        page.load(self._on_load, None, [tabs, self.table], **_AT_ONCE)
        self.forecast.wire()
        self.start.click(self._on_start, [self.table, *form.inputs, *settings], shown, **_QUIET)
        self.stop.click(self._on_stop, self.table, shown, **_QUIET)
        self.resume.click(self._on_resume, self.table, shown, **_QUIET)
        self.past.input(self._on_past, self.past, [self.table, *self._told], **_AT_ONCE)
        self.table.racechange(self._show, self.table, self._told, trigger_mode="always_last", **_AT_ONCE)

    def shown_runs(self, ids: list[str]) -> list[Any]:
        """Updates of `outputs` that lay any runs side by side."""
        value = {"runs": ids}
        return [value, *self._show(value)]

    @property
    def outputs(self) -> list[Any]:
        return [self.table, *self._told]

    # What is shown

    def _show(self, value: Any) -> list[Any]:
        """Updates of `_told`."""
        race_id = _race(value)
        known = self.facts.look(race_id, _runs(value))
        choices = self.facts.choices()
        is_on, can_resume = known["state"] == "on", known["state"] in ("stopped", "failed")
        listed = race_id if race_id in [name for _, name in choices] else None
        return [
            gr.update(choices=choices, value=listed, visible=bool(choices)),
            gr.update(interactive=is_on, variant="stop" if is_on else "secondary"),
            gr.update(visible=can_resume),
            {"runs": known.get("runs", [])[:MAX_RUNS]},
        ]

    def _on_open(self, value: Any, *settings: Any) -> list[Any]:
        if not _race(value) and not _runs(value):
            value = {"race": next((name for _, name in self.facts.choices()), None)}
        return [self._note(self.train_form.raw(settings)), value, *self._show(value)]

    def _on_load(self, request: gr.Request) -> list[Any]:
        """An address may name a race."""
        try:
            race = self.supervisor.race(request.query_params.get("race"))
        except RunError:
            return [gr.skip(), gr.skip()]
        return [gr.update(selected="compare"), {"race": race.id}]

    def _on_past(self, race_id: Any) -> list[Any]:
        value = {"race": race_id if isinstance(race_id, str) else None}
        return [value, *self._show(value)]

    def _note(self, raw: Mapping[str, Any]) -> str:
        return f"<p>{escape(settings_note(raw))}</p>"

    # Buttons: [problem, table, *_told]

    def _on_start(self, value: Any, *given: Any) -> list[Any]:
        asked_for, settings = given[: len(self.form.inputs)], given[len(self.form.inputs) :]
        problem = ""
        try:
            raw = self.train_form.raw(settings)
            asked = read(raw, *asked_for)
            if not self._is_second_click(value, asked):
                value = {"race": self.supervisor.start_race(**asked).id}
        except ConfigError as error:
            problem = f"Not started. {in_words(error)}."
        except RunError as error:
            problem = f"Not started: {error}."
        return [alert(problem), value if not problem else gr.skip(), *self._show(value)]

    def _on_stop(self, value: Any) -> list[Any]:
        problem = ""
        try:
            self.supervisor.stop_race(_race(value))
        except (RunError, OSError) as error:
            problem = f"Not stopped: {error}."
        return [alert(problem), _asked(value), *self._show(value)]

    def _on_resume(self, value: Any) -> list[Any]:
        problem = ""
        try:
            if not self.supervisor.resume_race(_race(value)):
                problem = "Nothing of this race is left to be done."
        except (RunError, OSError) as error:
            problem = f"Not resumed: {error}."
        return [alert(problem), _asked(value), *self._show(value)]

    def _is_second_click(self, value: Any, asked: Mapping[str, Any]) -> bool:
        """Whether the shown race is what is asked for, and has just been queued; a clock may have been set back."""
        try:
            plan = self.supervisor.race(_race(value)).plan()
        except RunError:
            return False
        lanes = [lane.entrant for lane in plan.lanes]
        same = plan.config == asked["base"].anchored().model_dump() and plan.scaling == asked["scaling"]
        same = same and plan.repeats == asked["repeats"]
        is_new = 0 <= time.time() - plan.made < DOUBLE_CLICK
        return is_new and same and lanes == asked["entrants"]


def _race(value: Any) -> Any:
    return value.get("race") if isinstance(value, dict) else None


def _runs(value: Any) -> list[str]:
    return ids_of(value.get("runs")) if isinstance(value, dict) else []


def _asked(value: Any) -> Any:
    """Another value each time: the page asks at once."""
    return {**value, "asked": time.time()} if isinstance(value, dict) else gr.skip()
