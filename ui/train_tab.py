"""The Train tab: settings at the left, the run at the right. What the buttons offer follows the run, not the click."""

from collections.abc import Mapping
from typing import Any

import gradio as gr

from trainer.config import ConfigError, TrainConfig, group
from trainer.datasets.prepare import peek
from trainer.devices import cpu_cores, cpu_has_bf16
from trainer.placement import place
from trainer.presets import PRESET_NOTES, PRESETS
from trainer.runs import RunError
from ui import widgets
from ui.first_visit import FirstVisit
from ui.form import CUSTOM, FIELDS, Form, parse, preset_of, recipe
from ui.meaning import explain, refusal, shell
from ui.run_buttons import RunButtons, alert
from ui.supervisor import Supervisor
from ui.waiting import Board

# Fixed, so that what a browser remembers outlives a restart of the server. It is no secret: settings only.
MEMORY = {"storage_key": "parallel-trainer-form-1", "secret": "parallel-trainer-form-1"}

_MAIN_ROWS = (("dataset", "model"), ("parallel",), ("devices", "processes"), ("epochs", "batch_size", "lr"))
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
# What tells that something has changed must not be dropped because an earlier one is not answered yet.
# Answered in the request itself. What several queued events do at once when a page opens may leave a stream of Gradio's
# open that nothing is sent over; if the server dies then, the page takes it for alive and answers no later press.
_AT_ONCE: dict[str, Any] = {**_QUIET, "queue": False}
_LATEST = {**_AT_ONCE, "trigger_mode": "always_last"}


class TrainTab:
    """Builds the tab inside the current Blocks; `wire()` connects it. `live` is the component that shows a run."""

    def __init__(self, supervisor: Supervisor, board: Board, form: Form, first_visit: FirstVisit, make_live):
        self.supervisor = supervisor
        self.board = board
        self.form = form
        self.first_visit = first_visit
        with gr.Row(elem_id="train", equal_height=False):
            self.notice = gr.HTML("", visible=False, elem_id="notice")
            with gr.Column(elem_id="form"):
                self._build_form()
            with gr.Column(elem_id="view"):
                self.live = make_live()
        self.memory = gr.BrowserState(None, **MEMORY)

    def _build_form(self) -> None:
        names = [*PRESETS, CUSTOM]
        self.preset = widgets.Dropdown(
            names, value="tutorial", label="Preset", info=PRESET_NOTES["tutorial"], filterable=False, elem_id="preset"
        )
        for fields in _MAIN_ROWS:
            with gr.Row(elem_classes=["fields"]):
                for field in fields:
                    visible = {"visible": self.form.defaults.parallel == "ddp"} if field == "processes" else {}
                    self.form.build(field, min_width=80, **visible)
        self.buttons = RunButtons(self.supervisor, self.board)
        self.meaning = gr.HTML("", elem_id="meaning")
        self.groups = {}
        for name, words in (
            ("optimisation", "Optimisation"),
            ("run", "Run"),
            ("lesson", "Lessons: slow it down on purpose"),
        ):
            with gr.Accordion(words, open=False, elem_id=f"group-{name}") as self.groups[name]:
                for field in FIELDS:
                    if group(field) == name:
                        self.form.build(field, min_width=80)
        with gr.Accordion("The same run from a shell", open=False, elem_id="shell"):
            self.command = gr.Textbox(
                label="In the directory of this program",
                interactive=False,
                lines=3,
                buttons=["copy"],
                placeholder="Fix the settings that are marked first.",
                elem_id="command",
            )

    def wire(self, page: gr.Blocks, tabs: gr.Tabs) -> None:
        """Connect the events; called when the whole page is built."""
        buttons, inputs, answer = self.buttons, self.form.inputs, self.answer
        seen = [self.live, *inputs]
        told = [buttons.problem, self.live, *buttons.outputs]
        gr.on(
            [widget.input for widget in inputs],
            self._on_edit,
            inputs,
            answer,
            trigger_mode="always_last",
            **_AT_ONCE,
        )
        self.preset.input(self._on_preset, [self.preset, *inputs], answer, **_AT_ONCE)
        page.load(self._on_load, self.memory, [self.notice, self.live, *answer], **_AT_ONCE).then(
            self._on_state, seen, [buttons.more_epochs, *buttons.outputs], **_AT_ONCE
        )
        buttons.start.click(
            self._on_start, seen, [self.live, *buttons.outputs, *self.groups.values(), *answer], **_QUIET
        )
        buttons.stop.click(self._on_stop, seen, told, **_QUIET)
        buttons.train_on.click(self._on_resume, [buttons.more_epochs, *seen], told, **_QUIET)
        buttons.elsewhere.click(self._on_elsewhere, seen, told, **_QUIET)
        buttons.others.click(lambda: gr.update(selected="runs"), None, tabs, **_QUIET)
        self.live.statechange(self._on_state, seen, [buttons.more_epochs, *buttons.outputs], **_LATEST)
        self.live.runschange(self._on_change, seen, [self.live, *buttons.outputs], **_LATEST)

    # What the settings mean

    @property
    def answer(self) -> list[Any]:
        """Everything that depends on the form, in the order of `_answer`."""
        depending = [self.buttons.problem, self.buttons.start, self.meaning, self.command, self.preset, self.memory]
        return [*depending, *self.form.inputs]

    def fill(self, config: TrainConfig) -> list[Any]:
        """Updates of `answer` that put `config` into the form."""
        return self._answer({**self.form.defaults.model_dump(), **self.form.fitting(config.model_dump())}, FIELDS)

    def _answer(self, raw: Mapping[str, Any], fill: tuple[str, ...] = ()) -> list[Any]:
        """Updates of `answer`. The values of the fields in `fill` go into their widgets."""
        errors: Mapping[str, str] = {}
        command = ""
        try:
            config = parse(raw)
            meaning, command = self._explain(config), shell(config, self.supervisor.runs_dir)
        except ConfigError as error:
            errors, meaning = error.errors, refusal(error)
        name = preset_of(raw)
        note = PRESET_NOTES.get(name, "Your own settings.")
        marks = self.form.marked(errors, raw)
        for field, mark in zip(FIELDS, marks, strict=True):
            if field in fill:
                mark["value"] = self.form.shown(field, raw[field])
        word = gr.update(value=self.buttons.start_word(raw))
        return [alert(""), word, meaning, command, gr.update(value=name, info=note), {"values": dict(raw)}, *marks]

    def _explain(self, config: TrainConfig) -> str:
        has_bf16 = cpu_has_bf16()
        return explain(config, place(config, self.form.gpus, cpu_cores(), has_bf16), peek(config), has_bf16)

    def _on_edit(self, *values: Any) -> list[Any]:
        raw = self.form.raw(values)
        picked = values[FIELDS.index("devices")]
        is_settled = not isinstance(picked, list) or picked == self.form.shown("devices", raw["devices"])
        return self._answer(raw, () if is_settled else ("devices",))

    def _on_preset(self, name: Any, *values: Any) -> list[Any]:
        chosen = recipe(name)
        return self._answer({**self.form.raw(values), **chosen}, tuple(chosen))

    def _on_load(self, memory: Any, request: gr.Request) -> list[Any]:
        remembered = memory.get("values") if isinstance(memory, dict) else None
        if isinstance(remembered, dict):
            values, note = remembered, ""
        else:
            name, note = self.first_visit.preselected()
            values = recipe(name)
        raw = {**self.form.defaults.model_dump(), **self.form.fitting(values)}
        self.form.look_at_gpus()
        shown = self.buttons.first_shown(request.query_params.get("run"))
        return [gr.update(value=note, visible=bool(note)), {"run": shown}, *self._answer(raw, FIELDS)]

    # Buttons

    def _on_start(self, live: Any, *values: Any) -> list[Any]:
        raw = self.form.raw(values)
        problem = ""
        errors: Mapping[str, str] = {}
        try:
            live = self.buttons.press_start(live, parse(raw))
        except ConfigError as error:
            problem, errors = "Not started: fix the settings that are marked.", error.errors
        except RunError as error:
            problem = f"Not started: {error}."
        groups = [gr.update(open=True) if any(group(e) == name for e in errors) else gr.skip() for name in self.groups]
        _, *answer = self._answer(raw)
        return [live, *self.buttons.show(live, raw), *groups, alert(problem), *answer]

    def _on_stop(self, live: Any, *values: Any) -> list[Any]:
        problem = self.buttons.press_stop(live)
        return [alert(problem), gr.skip(), *self.buttons.show(live, self.form.raw(values))]

    def _on_resume(self, epochs: Any, live: Any, *values: Any) -> list[Any]:
        problem = self.buttons.press_resume(live, epochs)
        return [alert(problem), gr.skip(), *self.buttons.show(live, self.form.raw(values))]

    def _on_elsewhere(self, live: Any, *values: Any) -> list[Any]:
        live = self.buttons.press_elsewhere(live)
        return [alert(""), live, *self.buttons.show(live, self.form.raw(values))]

    def _on_state(self, live: Any, *values: Any) -> list[Any]:
        """The shown run has another state."""
        return [self.buttons.suggested_epochs(live), *self.buttons.show(live, self.form.raw(values))]

    def _on_change(self, live: Any, *values: Any) -> list[Any]:
        """Some run has begun, ended or moved in the queue."""
        run = self.buttons.newcomer(live)
        now = {"run": run.id} if run else live
        return [now if run else gr.skip(), *self.buttons.show(now, self.form.raw(values))]
