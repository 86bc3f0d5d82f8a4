"""The buttons of the Train tab that act on runs. What they offer follows the shown run and the queue, not the click."""

import time
from collections.abc import Mapping
from html import escape
from typing import Any

import gradio as gr

from trainer.config import ConfigError, TrainConfig
from trainer.run_list import iter_runs
from trainer.runs import Run, RunError, RunState, RunStatus
from ui import widgets
from ui.form import parse, summary
from ui.supervisor import Supervisor
from ui.waiting import Board, config_of, name_of

DOUBLE_CLICK = 1.5  # seconds within which a second press of Start with the same settings is the same wish


class RunButtons:
    """Builds Start, Stop, Resume and the ways to other runs inside the current Blocks; its methods are handlers.

    `live` is the value of the component that shows a run, {"run": id}, as a browser sent it: anything.
    """

    def __init__(self, supervisor: Supervisor, board: Board):
        self.supervisor = supervisor
        self.board = board
        with gr.Row(elem_classes=["fields"]):
            self.start = gr.Button("Start", variant="primary", min_width=80, elem_id="start")
            self.stop = gr.Button("Stop", variant="secondary", interactive=False, min_width=80, elem_id="stop")
        self.problem = gr.HTML("", visible=False, elem_id="problem")
        with gr.Row(visible=False, elem_classes=["fields"], elem_id="train-on") as self.more:
            self.more_epochs = widgets.Number(
                label="Up to epoch", minimum=1, step=1, min_width=80, elem_id="more-epochs"
            )
            self.train_on = gr.Button("Resume", min_width=80, elem_id="train-on-button")
        with gr.Row(visible=False, elem_id="elsewhere-row") as self.ways:
            self.elsewhere = gr.Button("", visible=False, size="sm", min_width=80, elem_id="elsewhere")
            self.others = gr.Button("", visible=False, size="sm", min_width=80, elem_id="others")

    @property
    def outputs(self) -> list[Any]:
        """What `show` updates, in its order."""
        return [self.start, self.stop, self.more, self.ways, self.elsewhere, self.others]

    # What is offered

    def show(self, live: Any, raw: Mapping[str, Any]) -> list[Any]:
        """Updates of `outputs`, as the runs stand now. `raw` is what the form holds."""
        state = self._state(live)
        shown = state.run.id if state else None
        living, queued = self.supervisor.living(), self.supervisor.queued()
        hidden = [run for run in [*living, *queued] if run.id != shown]
        where = f"Show {name_of(hidden[0])}" if hidden else ""
        more = _more([run for run in living if run in hidden[1:]], [run for run in queued if run in hidden[1:]])
        return [
            gr.update(value=self.start_word(raw)),
            _stop_button(state),
            gr.update(visible=state is not None and _can_resume(state)),
            gr.update(visible=bool(hidden)),
            gr.update(visible=bool(hidden), value=where),
            gr.update(visible=bool(more), value=more),
        ]

    def start_word(self, raw: Mapping[str, Any]) -> str:
        """What pressing Start would do with these settings."""
        try:
            return "Add to queue" if self.board.would_wait(parse(raw)) else "Start"
        except (ConfigError, RunError):
            return "Start"

    def suggested_epochs(self, live: Any) -> Any:
        """An update of the epochs to resume to."""
        state = self._state(live)
        return gr.update(value=state.suggested_epochs()) if state and _can_resume(state) else gr.skip()

    def first_shown(self, asked: Any) -> str | None:
        """The run to show on arrival: the one in the address, else one at work, else the next one, else the newest."""
        try:
            return self.supervisor.run(asked).id
        except RunError:
            run = self._busiest() or next(iter_runs(self.supervisor.runs_dir), None)
            return run.id if run else None

    def newcomer(self, live: Any) -> Run | None:
        """Where nothing is shown, the run that somebody has started meanwhile."""
        is_settled = isinstance(live, dict) and "run" in live  # before, the page is about to be told
        return self._busiest() if is_settled and self._state(live) is None else None

    # What is done

    def press_start(self, live: Any, config: TrainConfig) -> Any:
        """The new value of `live`. Raises ConfigError or RunError."""
        shown = self._state(live)
        if shown and _is_second_click(shown, config):
            return live
        return {"run": self.supervisor.start(config).id}

    def press_stop(self, live: Any) -> str:
        """What went wrong, "" if nothing did."""
        try:
            self.supervisor.stop(_id(live))
        except (RunError, OSError) as error:
            return f"Not stopped: {error}."
        return ""

    def press_resume(self, live: Any, epochs: Any) -> str:
        """What went wrong, "" if nothing did."""
        try:
            self.supervisor.resume(_id(live), epochs)
        except ConfigError as error:
            return f"Not started. {summary(error.errors)}"
        except (RunError, OSError) as error:
            return f"Not started: {error}."
        return ""

    def press_elsewhere(self, live: Any) -> Any:
        """The new value of `live`."""
        run = self._busiest(but=_id(live))
        return {"run": run.id} if run else live

    def _busiest(self, but: Any = None) -> Run | None:
        """The newest run at work, else the first in the queue."""
        runs = [*self.supervisor.living(), *self.supervisor.queued()]
        return next((run for run in runs if run.id != but), None)

    def _state(self, live: Any) -> RunState | None:
        try:
            return self.supervisor.state(self.supervisor.run(_id(live)))
        except RunError:
            return None


def _id(live: Any) -> Any:
    return live.get("run") if isinstance(live, dict) else None


def _is_second_click(shown: RunState, config: TrainConfig) -> bool:
    """Whether what Start would start has just been started and has not ended; a clock may have been set back."""
    has_ended = not shown.status.living and shown.status != RunStatus.QUEUED
    age = time.time() - shown.run.queued_at
    return not has_ended and 0 <= age < DOUBLE_CLICK and config_of(shown.run) == config.anchored()


def _can_resume(state: RunState) -> bool:
    """It has ended and left a checkpoint."""
    has_ended = not state.status.living and state.status != RunStatus.QUEUED
    return has_ended and state.run.has_checkpoint and config_of(state.run) is not None


def _stop_button(state: RunState | None) -> Any:
    """Red only while there is something to stop."""
    status = state.status if state else None
    if status == RunStatus.QUEUED:
        return gr.update(value="Cancel", variant="secondary", interactive=True)
    if status == RunStatus.STOPPING:
        return gr.update(value="Stopping...", variant="secondary", interactive=False)
    is_at_work = status is not None and status.living
    return gr.update(value="Stop", variant="stop" if is_at_work else "secondary", interactive=is_at_work)


def _more(living: list[Run], queued: list[Run]) -> str:
    """As in '1 more is at work, 2 are queued'."""
    parts = [(len(living), "at work"), (len(queued), "queued")]
    said = [f"{count} {'is' if count == 1 else 'are'} {what}" for count, what in parts if count]
    return ", ".join([said[0].replace(" ", " more ", 1), *said[1:]]) if said else ""


def alert(text: str) -> Any:
    return gr.update(value=f"<p role='alert'>{escape(text)}</p>" if text else "", visible=bool(text))
