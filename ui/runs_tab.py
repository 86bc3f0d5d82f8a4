"""The Runs tab: every run of the directory, whoever started it; select one to act on it, several to compare them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from trainer.runs import Run
from ui import widgets
from ui.curves import Curves
from ui.live_chart import CompareRuns
from ui.run_actions import TEACHING, RunActions, ids_of, selection, words_html
from ui.run_table import run_table
from ui.supervisor import Supervisor

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


@dataclass(frozen=True)
class Hook:
    """What the page does elsewhere: `update(argument)` returns the updates of `outputs`."""

    update: Callable[[Any], Sequence[Any]]
    outputs: Sequence[Any]


class RunsTab:
    """Builds the tab inside the current Blocks; `wire(...)` connects it."""

    def __init__(self, curves: Curves, supervisor: Supervisor):
        self.actions = RunActions(supervisor, curves.board)
        self.table = run_table(curves.board)
        with gr.Column(elem_id="run-actions"):
            self.words = gr.HTML(words_html(TEACHING), elem_id="run-words", padding=False)
            with gr.Row(elem_classes=["actions"]):
                self.open = gr.Button("Open", size="sm", min_width=80, visible=False, elem_id="run-open")
                self.settings = gr.Button(
                    "Use these settings", size="sm", min_width=140, visible=False, elem_id="run-settings"
                )
                self.stop = gr.Button(
                    "Stop", size="sm", variant="stop", min_width=80, visible=False, elem_id="run-stop"
                )
                self.speeds = gr.Button(
                    "Compare their speed", size="sm", min_width=150, visible=False, elem_id="run-speeds"
                )
                self.delete = gr.Button("Delete", size="sm", min_width=80, visible=False, elem_id="run-delete")
                with gr.Row(visible=False, elem_classes=["pair"]) as self.resuming:
                    self.epochs = widgets.Number(
                        label="Up to epoch", minimum=1, step=1, min_width=90, elem_id="run-epochs"
                    )
                    self.resume = gr.Button("Resume", size="sm", min_width=80, elem_id="run-resume")
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
        """Everything that depends on the selection, in the order of `RunActions.show`."""
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
            self.speeds,
        ]

    def wire(self, tab: gr.Tab, open_run: Hook, load_settings: Hook, compare_runs: Hook) -> None:
        """Connect the events. `open_run` gets a run's id, `load_settings` its TrainConfig, `compare_runs` ids."""
        actions = self.actions
        chosen, told = self.compare, [self.table, *self._panel]
        # An inner tab mounts its content when it is first opened; asking at once shows what happened meanwhile.
        tab.select(lambda value: selection(ids_of(value)), chosen, self.table, **_QUIET)
        # One after the other: Gradio's "always_last" would come with the data of the first.
        in_order = {"trigger_mode": "multiple", "concurrency_limit": 1}
        self.table.pick(actions.pick, None, [self.compare, *self._panel], **in_order, **_QUIET)
        self.stop.click(actions.stop, chosen, told, **_QUIET)
        self.resume.click(actions.resume, [chosen, self.epochs], told, **_QUIET)
        self.rename.click(actions.rename, [chosen, self.name], told, **_QUIET)
        self.name.submit(actions.rename, [chosen, self.name], told, **_QUIET)
        self.delete.click(actions.ask_to_delete, chosen, [self.confirming, self.question], **_QUIET)
        self.keep.click(lambda: gr.update(visible=False), None, self.confirming, **_QUIET)
        self.really.click(actions.delete, chosen, [self.compare, *told], **_QUIET)
        for button, hook, argument in (
            (self.open, open_run, lambda run: run.id),
            (self.settings, load_settings, lambda run: run.config()),
        ):
            button.click(self._leaving(hook, argument), chosen, [self.words, *hook.outputs], **_QUIET)
        self.speeds.click(lambda value: compare_runs.update(ids_of(value)), chosen, compare_runs.outputs, **_QUIET)

    def _leaving(self, hook: Hook, argument: Callable[[Run], Any]) -> Callable[[Any], list[Any]]:
        def leave(value: Any) -> list[Any]:
            try:
                given = argument(self.actions.one(value))
            except ValueError as error:
                return [words_html(f"{error}.", is_problem=True), *(gr.skip() for _ in hook.outputs)]
            return [gr.skip(), *hook.update(given)]

        return leave


def build_runs_tab(curves: Curves, supervisor: Supervisor) -> RunsTab:
    """Build the tab inside the current Blocks. Call `.wire(tab, open_run, load_settings)` when all outputs exist."""
    return RunsTab(curves, supervisor)
