"""What can be done with the runs that are selected on the Runs tab: the handlers of its events.

What is selected is the value of the chart, {"runs": [ids]}: all handlers take it from there, so no session is kept.
"""

import time
from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr

from trainer.config import ConfigError
from trainer.runs import RUN_ID, Run, RunError, RunState, RunStatus
from ui.run_table import LISTED
from ui.supervisor import Supervisor
from ui.waiting import Board, config_of, in_words, name_of

TEACHING = "Select a run to open it, train it on, rename or delete it. Select several to compare their curves."


class RunActions:
    """Handlers. Most return [table, *panel], the panel being the widgets that depend on the selection."""

    def __init__(self, supervisor: Supervisor, board: Board):
        self.supervisor = supervisor
        self.board = board

    def one(self, value: Any) -> Run:
        """The selected run. Raises RunError."""
        ids = ids_of(value)
        if len(ids) != 1:
            raise RunError("select one run")
        return self.supervisor.run(ids[0])

    # What the selection offers

    def pick(self, event: gr.EventData) -> list[Any]:
        ids = ids_of(event._data)
        return [{"runs": ids}, *self.show(ids)]

    def show(self, ids: list[str], note: str = "", is_problem: bool = False) -> list[Any]:
        """Updates of `_panel`. `note` says what has just happened."""
        states = [self.supervisor.state(run) for run in map(self._find, ids) if run]
        one = states[0] if len(states) == 1 else None
        config = config_of(one.run) if one else None
        can_resume = one is not None and config is not None and _has_ended(one) and one.run.has_checkpoint
        are_deletable = bool(states) and not any(state.status.living for state in states)
        words = note or (TEACHING if not states else f"{len(states)} runs selected." if not one else self._summary(one))
        return [
            words_html(words, is_problem),
            gr.update(visible=one is not None),
            gr.update(visible=config is not None),
            _stop_button(states),
            gr.update(visible=are_deletable, value=f"Delete {len(states)} runs" if len(states) > 1 else "Delete"),
            gr.update(visible=can_resume),
            gr.update(value=one.suggested_epochs()) if one and can_resume else gr.skip(),
            gr.update(visible=config is not None),
            gr.update(value=config.label) if config else gr.skip(),
            gr.update(visible=False),
            gr.update(visible=len(states) > 1),
        ]

    def _summary(self, state: RunState) -> str:
        waiting = self.board.place(state.run) if state.status == RunStatus.QUEUED else None
        more = in_words(waiting) if waiting else state.error
        return f"{name_of(state.run)}, {state.status}" + (f": {more}" if more else "")

    def _find(self, run_id: str) -> Run | None:
        try:
            return self.supervisor.run(run_id)
        except RunError:
            return None

    # Actions: [table, *_panel]

    def _act(self, value: Any, act: Callable[[Run], str]) -> list[Any]:
        """Do something to the selected run and say how it went."""
        ids = ids_of(value)
        try:
            note, is_problem = act(self.one(value)), False
        except ConfigError as error:
            note, is_problem = f"Not done: {'; '.join(error.errors.values())}.", True
        except (RunError, OSError) as error:
            note, is_problem = f"Not done: {error}.", True
        return [selection(ids), *self.show(ids, note, is_problem)]

    def stop(self, value: Any) -> list[Any]:
        """Stop what is at work, take out of the queue what waits; those that have ended are left as they are."""
        ids = ids_of(value)
        asked: list[Run] = []
        cancelled: list[Run] = []
        problems: list[str] = []
        for run in filter(None, map(self._find, ids)):
            status = self.supervisor.state(run).status
            try:
                if _can_stop(status) or len(ids) == 1:
                    self.supervisor.stop(run.id)
                    (cancelled if status == RunStatus.QUEUED else asked).append(run)
            except (RunError, OSError) as error:
                problems.append(str(error))
        said = [_asked(asked), _cancelled(cancelled), f"Not done: {'; '.join(problems)}." if problems else ""]
        note = " ".join(filter(None, said)) or "Not done: select a run that is at work or queued."
        return [selection(ids), *self.show(ids, note, bool(problems) or not (asked or cancelled))]

    def resume(self, value: Any, epochs: Any) -> list[Any]:
        def train_on(run: Run) -> str:
            self.supervisor.resume(run.id, epochs)
            verb = "waits in the queue to train" if run.state().status == RunStatus.QUEUED else "trains"
            return f"{name_of(run)} {verb} on to {epochs} epochs."

        return self._act(value, train_on)

    def rename(self, value: Any, name: Any) -> list[Any]:
        def write(run: Run) -> str:
            run.write_config(run.config().changed(label=name))
            return f"Renamed: {name_of(run)}."

        return self._act(value, write)

    def ask_to_delete(self, value: Any) -> list[Any]:
        runs = [run for run in map(self._find, ids_of(value)) if run]
        what = name_of(runs[0]) if len(runs) == 1 else f"these {len(runs)} runs"
        question = f"Delete {what} with all checkpoints and curves? It cannot be undone."
        return [gr.update(visible=bool(runs)), words_html(question)]

    def delete(self, value: Any) -> list[Any]:
        """Delete what is selected; what cannot be deleted stays selected."""
        left, problems, count = [], [], 0
        for run in filter(None, map(self._find, ids_of(value))):
            try:
                run.delete()
                count += 1
            except (RunError, OSError) as error:
                left.append(run.id)
                problems.append(str(error))
        note = (
            f"Not deleted: {'; '.join(problems)}." if problems else f"Deleted {count} run{'s' if count != 1 else ''}."
        )
        return [{"runs": left}, selection(left), *self.show(left, note, bool(problems))]


def ids_of(value: Any) -> list[str]:
    """The ids in what a browser sent."""
    found = value.get("runs") if isinstance(value, dict) else None
    ids = found if isinstance(found, list) else []
    return list(dict.fromkeys(i for i in ids if isinstance(i, str) and RUN_ID.fullmatch(i)))[:LISTED]


def selection(ids: list[str]) -> dict[str, Any]:
    return {"selected": ids, "asked": time.time()}  # another value each time: the page asks at once


def _has_ended(state: RunState) -> bool:
    return not state.status.living and state.status != RunStatus.QUEUED


def _can_stop(status: RunStatus) -> bool:
    return status == RunStatus.QUEUED or (status.living and status != RunStatus.STOPPING)


def _stop_button(states: list[RunState]) -> Any:
    """For all selected runs that are at work or wait."""
    stoppable = [state.status for state in states if _can_stop(state.status)]
    is_stopping = not stoppable and any(state.status.living for state in states)
    word = "Cancel" if stoppable and set(stoppable) == {RunStatus.QUEUED} else "Stop"
    many = f" {len(stoppable)} runs" if len(stoppable) > 1 else ""
    return gr.update(
        visible=bool(stoppable) or is_stopping,
        interactive=bool(stoppable),
        value="Stopping..." if is_stopping else word + many,
        variant="stop" if word == "Stop" and stoppable else "secondary",
    )


def _asked(runs: list[Run]) -> str:
    if len(runs) < 2:
        return f"{name_of(runs[0])} is asked to stop; it saves a checkpoint first." if runs else ""
    return f"{len(runs)} runs are asked to stop; they save a checkpoint first."


def _cancelled(runs: list[Run]) -> str:
    if len(runs) < 2:
        return f"{name_of(runs[0])} was taken out of the queue." if runs else ""
    return f"{len(runs)} runs were taken out of the queue."


def words_html(text: str, is_problem: bool = False) -> str:
    return f'<p role="{"alert" if is_problem else "status"}"{" class=problem" if is_problem else ""}>{escape(text)}</p>'
