"""The Train tab: settings at the left, the run at the right. What the buttons offer follows the run, not the click."""

from collections.abc import Mapping
from html import escape
from typing import Any

import gradio as gr

from trainer.config import ConfigError, TrainConfig, group
from trainer.datasets.prepare import peek
from trainer.devices import cpu_cores, cpu_has_bf16
from trainer.placement import place
from trainer.presets import PRESET_NOTES, PRESETS
from trainer.runs import Run, RunError, RunStatus, iter_runs
from ui import widgets
from ui.first_visit import FirstVisit
from ui.form import CUSTOM, FIELDS, Form, parse, preset_of, recipe, summary
from ui.meaning import explain, refusal, shell
from ui.supervisor import Supervisor

# Fixed, so that what a browser remembers outlives a restart of the server. It is no secret: settings only.
MEMORY = {"storage_key": "parallel-trainer-form-1", "secret": "parallel-trainer-form-1"}

_MAIN_ROWS = (("dataset", "model"), ("parallel",), ("devices", "processes"), ("epochs", "batch_size", "lr"))
# A run that somebody else started shows when the user comes back to this tab; nothing asks in the background.
_ATTENTION = """
const back = () => { if (element.isConnected && !document.hidden) trigger("attention"); };
document.addEventListener("visibilitychange", back);
window.addEventListener("focus", back);
"""
_QUIET = {"show_progress": "hidden", "api_visibility": "private"}


class TrainTab:
    """Builds the tab inside the current Blocks; `wire()` connects it. `live` is the component that shows a run."""

    def __init__(self, supervisor: Supervisor, form: Form, first_visit: FirstVisit, make_live):
        self.supervisor = supervisor
        self.form = form
        self.first_visit = first_visit
        with gr.Row(elem_id="train", equal_height=False):
            self.notice = gr.HTML("", visible=False, elem_id="notice")
            with gr.Column(elem_id="form"):
                self._build_form()
            with gr.Column(elem_id="view"):
                self.live = make_live()
        self.attention = gr.HTML("", elem_id="attention", js_on_load=_ATTENTION)
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
        with gr.Row(elem_classes=["fields"]):
            self.start = gr.Button("Start", variant="primary", min_width=80, elem_id="start")
            self.stop = gr.Button("Stop", variant="secondary", interactive=False, min_width=80, elem_id="stop")
        self.problem = gr.HTML("", visible=False, elem_id="problem")
        self.elsewhere = gr.Button("", visible=False, size="sm", elem_id="elsewhere")
        with gr.Row(visible=False, elem_classes=["fields"], elem_id="train-on") as self.more:
            self.more_epochs = widgets.Number(
                label="Up to epoch", minimum=1, step=1, min_width=80, elem_id="more-epochs"
            )
            self.train_on = gr.Button("Resume", min_width=80, elem_id="train-on-button")
        self.meaning = gr.HTML("", elem_id="meaning")
        self.groups = {}
        for name, words in (("optimisation", "Optimisation"), ("run", "Run")):
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

    def wire(self, page: gr.Blocks) -> None:
        """Connect the events; called when the whole page is built."""
        inputs, answer = self.form.inputs, self.answer
        controls = [self.start, self.stop, self.elsewhere, self.more, self.more_epochs]
        gr.on(
            [widget.input for widget in inputs],
            self._on_edit,
            inputs,
            answer,
            trigger_mode="always_last",
            queue=False,
            **_QUIET,
        )
        self.preset.input(self._on_preset, [self.preset, *inputs], answer, queue=False, **_QUIET)
        page.load(self._on_load, self.memory, [self.notice, self.live, *answer], **_QUIET).then(
            self._controls, self.live, controls, **_QUIET
        )
        self.start.click(
            self._on_start,
            [self.live, *inputs],
            [self.live, *controls, *self.groups.values(), *answer],
            **_QUIET,
        )
        self.stop.click(self._on_stop, self.live, [self.problem, *controls], **_QUIET)
        self.train_on.click(
            self._on_train_on, [self.live, self.more_epochs], [self.problem, self.live, *controls], **_QUIET
        )
        self.elsewhere.click(self._on_elsewhere, self.live, [self.problem, self.live, *controls], **_QUIET)
        self.live.statechange(self._controls, self.live, controls, **_QUIET)
        self.attention.attention(self._on_attention, self.live, [self.live, *controls], **_QUIET)

    # What the settings mean

    @property
    def answer(self) -> list[Any]:
        """Everything that depends on the form, in the order of `_answer`."""
        return [self.problem, self.meaning, self.command, self.preset, self.memory, *self.form.inputs]

    def fill(self, config: TrainConfig) -> list[Any]:
        """Updates of `answer` that put `config` into the form."""
        return self._answer({**self.form.defaults.model_dump(), **self.form.fitting(config.model_dump())}, FIELDS)

    def _answer(self, raw: Mapping[str, Any], fill: tuple[str, ...] = ()) -> list[Any]:
        """Everything that depends on the form: [problem, meaning, command, preset, memory, *widgets]."""
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
        return [_alert(""), meaning, command, gr.update(value=name, info=note), {"values": dict(raw)}, *marks]

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
        shown = self._run_of(request.query_params.get("run"))
        return [gr.update(value=note, visible=bool(note)), {"run": shown}, *self._answer(raw, FIELDS)]

    def _run_of(self, asked: Any) -> str | None:
        """The run to show on arrival: the one in the address, else the one at work, else the newest."""
        try:
            return self.supervisor.run(asked).id
        except RunError:
            run = self.supervisor.living() or next(iter_runs(self.supervisor.runs_dir), None)
            return run.id if run else None

    # Buttons

    def _on_start(self, live: Any, *values: Any) -> list[Any]:
        raw = self.form.raw(values)
        try:
            live, problem, errors = {"run": self.supervisor.start(parse(raw)).id}, "", {}
        except ConfigError as error:
            problem, errors = "Not started: fix the settings that are marked.", error.errors
        except RunError as error:
            problem, errors = f"Not started: {error}.", {}
        groups = [gr.update(open=True) if any(group(e) == name for e in errors) else gr.skip() for name in self.groups]
        _, *answer = self._answer(raw)
        return [live, *self._controls(live), *groups, _alert(problem), *answer]

    def _on_stop(self, live: Any) -> list[Any]:
        problem = ""
        run = self.supervisor.living()
        if run is not None:
            try:
                self.supervisor.stop(run.id)
            except RunError as error:
                problem = f"{error}."
        return [_alert(problem), *self._controls(live)]

    def _on_train_on(self, live: Any, epochs: Any) -> list[Any]:
        problem = ""
        try:
            self.supervisor.resume(_shown(live), epochs)
        except ConfigError as error:
            problem = f"Not started. {summary(error.errors)}"
        except RunError as error:
            problem = f"Not started: {error}."
        return [_alert(problem), live, *self._controls(live)]

    def _on_elsewhere(self, live: Any) -> list[Any]:
        run = self.supervisor.living()
        live = {"run": run.id} if run else live
        return [_alert(""), live, *self._controls(live)]

    def _on_attention(self, live: Any) -> list[Any]:
        run = self.supervisor.living() if _shown(live) is None else None
        live = {"run": run.id} if run else live
        return [live if run else gr.skip(), *self._controls(live)]

    def _controls(self, live: Any) -> list[Any]:
        """[Start, Stop, the way to the living run, Resume, its epochs], as the runs stand now."""
        living = self.supervisor.living()
        is_stopping = living is not None and living.stop_path.exists()
        shown = _shown(live)
        ended = self._ended(shown) if living is None else None
        suggestion = gr.skip() if ended is None else gr.update(value=ended.state().suggested_epochs())
        return [
            gr.update(interactive=living is None),
            gr.update(
                value="Stopping..." if is_stopping else "Stop",
                variant="stop" if living and not is_stopping else "secondary",
                interactive=living is not None and not is_stopping,
            ),
            gr.update(visible=living is not None and living.id != shown, value=f"Show {living.id}" if living else ""),
            gr.update(visible=ended is not None),
            suggestion,
        ]

    def _ended(self, run_id: str | None) -> Run | None:
        """The shown run if it can train on: it has ended and left a checkpoint."""
        try:
            run = self.supervisor.run(run_id)
        except RunError:
            return None
        has_ended = not run.state().status.living and run.state().status != RunStatus.QUEUED
        return run if has_ended and run.checkpoint_path("last").exists() else None


def _shown(live: Any) -> str | None:
    return live.get("run") if isinstance(live, dict) else None


def _alert(text: str) -> Any:
    return gr.update(value=f"<p role='alert'>{escape(text)}</p>" if text else "", visible=bool(text))
