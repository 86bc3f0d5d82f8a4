"""What can be done with the runs that are selected on the Runs tab: the handlers of its events.

What is selected is the value of the chart, {"runs": [ids]}: all handlers take it from there, so no session is kept.
"""

import time
from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr

from trainer.config import ConfigError, TrainConfig
from trainer.runs import RUN_ID, Run, RunError, RunStatus
from ui.run_table import LISTED
from ui.supervisor import Supervisor

TEACHING = "Select a run to open it, train it on, rename or delete it. Select several to compare their curves."


class RunActions:
    """Handlers. Most return [table, *panel], the panel being the widgets that depend on the selection."""

    def __init__(self, supervisor: Supervisor):
        self.supervisor = supervisor

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
            words_html(words, is_problem),
            gr.update(visible=one is not None),
            gr.update(visible=config is not None),
            gr.update(visible=one is not None and one.status.living, interactive=bool(one and _can_stop(one.status))),
            gr.update(visible=are_deletable, value=f"Delete {len(runs)} runs" if len(runs) > 1 else "Delete"),
            gr.update(visible=can_resume),
            gr.update(value=one.suggested_epochs()) if one and can_resume else gr.skip(),
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
        ids = ids_of(value)
        try:
            note, is_problem = act(self.one(value)), False
        except ConfigError as error:
            note, is_problem = f"Not done: {'; '.join(error.errors.values())}.", True
        except (RunError, OSError) as error:
            note, is_problem = f"Not done: {error}.", True
        return [selection(ids), *self.show(ids, note, is_problem)]

    def stop(self, value: Any) -> list[Any]:
        def ask(run: Run) -> str:
            self.supervisor.stop(run.id)
            return f"{_name(run)} is asked to stop; it saves a checkpoint first."

        return self._act(value, ask)

    def resume(self, value: Any, epochs: Any) -> list[Any]:
        def train_on(run: Run) -> str:
            self.supervisor.resume(run.id, epochs)
            return f"{_name(run)} trains on to {epochs} epochs."

        return self._act(value, train_on)

    def rename(self, value: Any, name: Any) -> list[Any]:
        def write(run: Run) -> str:
            run.write_config(run.config().changed(label=name))
            return f"Renamed: {_name(run)}."

        return self._act(value, write)

    def ask_to_delete(self, value: Any) -> list[Any]:
        runs = [run for run in map(self._find, ids_of(value)) if run]
        what = _name(runs[0]) if len(runs) == 1 else f"these {len(runs)} runs"
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


def words_html(text: str, is_problem: bool = False) -> str:
    return f'<p role="{"alert" if is_problem else "status"}"{" class=problem" if is_problem else ""}>{escape(text)}</p>'
