"""The Runs tab: every run of the directory, whoever started it; select one to act on it, several to compare them.

What is selected is the value of the chart, {"runs": [ids]}: all handlers take it from there, so no session is kept.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from trainer.config import ConfigError, TrainConfig
from trainer.runs import RUN_ID, Run, RunError, RunStatus
from ui import widgets
from ui.curves import Curves
from ui.live_chart import CompareRuns
from ui.run_table import LISTED, run_table
from ui.supervisor import Supervisor, epochs_done

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
TEACHING = "Select a run to open it, train it on, rename or delete it. Select several to compare their curves."


@dataclass(frozen=True)
class Hook:
    """What the page does elsewhere: `update(argument)` returns the updates of `outputs`."""

    update: Callable[[Any], Sequence[Any]]
    outputs: Sequence[Any]


class RunsTab:
    """Builds the tab inside the current Blocks; `wire(...)` connects it."""

    def __init__(self, curves: Curves, supervisor: Supervisor):
        self.supervisor = supervisor
        self.table = run_table(supervisor.runs_dir)
        with gr.Column(elem_id="run-actions"):
            self.words = gr.HTML(_words(TEACHING), elem_id="run-words", padding=False)
            with gr.Row(elem_classes=["actions"]):
                self.open = gr.Button("Open", size="sm", min_width=80, visible=False, elem_id="run-open")
                self.settings = gr.Button(
                    "Use these settings", size="sm", min_width=140, visible=False, elem_id="run-settings"
                )
                self.stop = gr.Button(
                    "Stop", size="sm", variant="stop", min_width=80, visible=False, elem_id="run-stop"
                )
                self.delete = gr.Button("Delete", size="sm", min_width=80, visible=False, elem_id="run-delete")
                with gr.Row(visible=False, elem_classes=["pair"]) as self.resuming:
                    self.epochs = widgets.Number(
                        label="Epochs in all", minimum=1, step=1, min_width=90, elem_id="run-epochs"
                    )
                    self.resume = gr.Button("Train on", size="sm", min_width=80, elem_id="run-resume")
                with gr.Row(visible=False, elem_classes=["pair"]) as self.naming:
                    self.name = widgets.Textbox(label="Name", max_lines=1, min_width=150, elem_id="run-name")
                    self.rename = gr.Button("Rename", size="sm", min_width=80, elem_id="run-rename")
            with gr.Row(visible=False, elem_classes=["actions"], elem_id="run-confirm") as self.confirming:
                self.question = gr.HTML("", padding=False)
                self.really = gr.Button(
                    "Delete for good", size="sm", variant="stop", min_width=120, elem_id="run-really"
                )
                self.keep = gr.Button("Keep", size="sm", min_width=80, elem_id="run-keep")
        self.compare = CompareRuns(curves, elem_id="compare")

    @property
    def _panel(self) -> list[Any]:
        """Everything that depends on the selection, in the order of `_show`."""
        return [
            self.words,
            self.open,
            self.settings,
            self.stop,
            self.delete,
            self.resuming,
            self.epochs,
            self.naming,
            self.name,
            self.confirming,
        ]

    def wire(self, tab: gr.Tab, open_run: Hook, load_settings: Hook) -> None:
        """Connect the events. `open_run` gets a run's id, `load_settings` its TrainConfig."""
        chosen, told = self.compare, [self.table, *self._panel]
        # An inner tab mounts its content when it is first opened; asking at once shows what happened meanwhile.
        tab.select(lambda value: _selection(_ids(value)), chosen, self.table, **_QUIET)
        self.table.pick(self._on_pick, None, [self.compare, *self._panel], trigger_mode="always_last", **_QUIET)
        self.stop.click(self._on_stop, chosen, told, **_QUIET)
        self.resume.click(self._on_resume, [chosen, self.epochs], told, **_QUIET)
        self.rename.click(self._on_rename, [chosen, self.name], told, **_QUIET)
        self.name.submit(self._on_rename, [chosen, self.name], told, **_QUIET)
        self.delete.click(self._on_delete, chosen, [self.confirming, self.question], **_QUIET)
        self.keep.click(lambda: gr.update(visible=False), None, self.confirming, **_QUIET)
        self.really.click(self._on_really, chosen, [self.compare, *told], **_QUIET)
        for button, hook, argument in (
            (self.open, open_run, lambda run: run.id),
            (self.settings, load_settings, lambda run: run.config()),
        ):
            button.click(self._leaving(hook, argument), chosen, [self.words, *hook.outputs], **_QUIET)

    def _leaving(self, hook: Hook, argument: Callable[[Run], Any]) -> Callable[[Any], list[Any]]:
        def leave(value: Any) -> list[Any]:
            try:
                given = argument(self._one(value))
            except ValueError as error:
                return [_words(f"{error}.", is_problem=True), *(gr.skip() for _ in hook.outputs)]
            return [gr.skip(), *hook.update(given)]

        return leave

    def _one(self, value: Any) -> Run:
        """The selected run. Raises RunError."""
        ids = _ids(value)
        if len(ids) != 1:
            raise RunError("select one run")
        return self.supervisor.run(ids[0])

    # What the selection offers

    def _on_pick(self, event: gr.EventData) -> list[Any]:
        ids = _ids(event._data)
        return [{"runs": ids}, *self._show(ids)]

    def _show(self, ids: list[str], note: str = "", is_problem: bool = False) -> list[Any]:
        """Updates of `_panel`. `note` says what has just happened."""
        runs = [run for run in map(self._find, ids) if run]
        states = [run.state() for run in runs]
        one = states[0] if len(states) == 1 else None
        has_ended = one is not None and not one.status.living and one.status != RunStatus.QUEUED
        config = _config(one.run) if one else None
        can_resume = one is not None and config is not None and has_ended and one.run.checkpoint_path("last").exists()
        are_deletable = bool(states) and not any(state.status.living for state in states)
        words = note or (
            TEACHING if not runs else f"{len(runs)} runs selected." if len(runs) > 1 else _summary(runs[0])
        )
        return [
            _words(words, is_problem),
            gr.update(visible=one is not None),
            gr.update(visible=config is not None),
            gr.update(visible=one is not None and one.status.living, interactive=bool(one and _can_stop(one.status))),
            gr.update(visible=are_deletable, value=f"Delete {len(runs)} runs" if len(runs) > 1 else "Delete"),
            gr.update(visible=can_resume),
            gr.update(value=suggested_epochs(one.run)) if one and can_resume else gr.skip(),
            gr.update(visible=config is not None),
            gr.update(value=config.label) if config else gr.skip(),
            gr.update(visible=False),
        ]

    def _find(self, run_id: str) -> Run | None:
        try:
            return self.supervisor.run(run_id)
        except RunError:
            return None

    # Actions: [table, *_panel]

    def _act(self, value: Any, act: Callable[[Run], str]) -> list[Any]:
        """Do something to the selected run and say how it went."""
        ids = _ids(value)
        try:
            note, is_problem = act(self._one(value)), False
        except ConfigError as error:
            note, is_problem = f"Not done: {'; '.join(error.errors.values())}.", True
        except (RunError, OSError) as error:
            note, is_problem = f"Not done: {error}.", True
        return [_selection(ids), *self._show(ids, note, is_problem)]

    def _on_stop(self, value: Any) -> list[Any]:
        def stop(run: Run) -> str:
            self.supervisor.stop(run.id)
            return f"{_name(run)} is asked to stop; it saves a checkpoint first."

        return self._act(value, stop)

    def _on_resume(self, value: Any, epochs: Any) -> list[Any]:
        def resume(run: Run) -> str:
            self.supervisor.resume(run.id, epochs)
            return f"{_name(run)} trains on to {epochs} epochs."

        return self._act(value, resume)

    def _on_rename(self, value: Any, name: Any) -> list[Any]:
        def rename(run: Run) -> str:
            run.write_config(run.config().changed(label=name))
            return f"Renamed: {_name(run)}."

        return self._act(value, rename)

    def _on_delete(self, value: Any) -> list[Any]:
        runs = [run for run in map(self._find, _ids(value)) if run]
        what = _name(runs[0]) if len(runs) == 1 else f"these {len(runs)} runs"
        question = f"Delete {what} with all checkpoints and curves? It cannot be undone."
        return [gr.update(visible=bool(runs)), _words(question)]

    def _on_really(self, value: Any) -> list[Any]:
        """Delete what is selected; what cannot be deleted stays selected."""
        left, problems, count = [], [], 0
        for run in filter(None, map(self._find, _ids(value))):
            try:
                run.delete()
                count += 1
            except (RunError, OSError) as error:
                left.append(run.id)
                problems.append(str(error))
        note = (
            f"Not deleted: {'; '.join(problems)}." if problems else f"Deleted {count} run{'s' if count != 1 else ''}."
        )
        return [{"runs": left}, _selection(left), *self._show(left, note, bool(problems))]


def suggested_epochs(run: Run) -> int:
    """The rest of a run that was cut short; as much again for one that was done."""
    epochs = run.config().epochs
    return epochs if epochs_done(run) < epochs else 2 * epochs


def build_runs_tab(curves: Curves, supervisor: Supervisor) -> RunsTab:
    """Build the tab inside the current Blocks. Call `.wire(tab, open_run, load_settings)` when all outputs exist."""
    return RunsTab(curves, supervisor)


def _ids(value: Any) -> list[str]:
    """The ids in what a browser sent."""
    found = value.get("runs") if isinstance(value, dict) else None
    ids = found if isinstance(found, list) else []
    return list(dict.fromkeys(i for i in ids if isinstance(i, str) and RUN_ID.fullmatch(i)))[:LISTED]


def _selection(ids: list[str]) -> dict[str, Any]:
    return {"selected": ids, "asked": time.time()}  # another value each time: the page asks at once


def _config(run: Run) -> TrainConfig | None:
    try:
        return run.config()
    except ValueError:
        return None


def _name(run: Run) -> str:
    config = _config(run)
    return config.label if config and config.label else run.id


def _summary(run: Run) -> str:
    state = run.state()
    return f"{_name(run)}, {state.status}" + (f": {state.error}" if state.error else "")


def _can_stop(status: RunStatus) -> bool:
    return status.living and status != RunStatus.STOPPING


def _words(text: str, is_problem: bool = False) -> str:
    return f'<p role="{"alert" if is_problem else "status"}"{" class=problem" if is_problem else ""}>{escape(text)}</p>'
