"""All runs as a table in the page, kept up to date there by asking each second for the rows that changed.

The component's value is {"selected": [ids]}: set it to change the selection or just to make the page ask at once.
Event `pick`: the selection changed, or a selected run has another state; data {runs: [ids]}, newest first.
"""

import secrets
import threading
import time
from pathlib import Path
from typing import Any

import gradio as gr

from trainer.run_list import check_readable, iter_runs
from trainer.runs import Run, RunError, RunState, RunStatus
from ui.json_reply import json_reply
from ui.run_facts import devices, sentence
from ui.waiting import Board, ordinal

HERE = Path(__file__).parent
LISTED = 200
FRESH = 0.5  # seconds for which one reading serves all browsers


def run_table(board: Board, elem_id: str = "runs-table") -> Any:
    """The component. It listens to nothing; connect its event with `.pick(...)`."""
    return gr.HTML(
        value={"selected": []},
        elem_id=elem_id,
        elem_classes=["curves"],  # for the colours of the states
        html_template=(HERE / "run_table.html").read_text("utf-8"),
        js_on_load="\n".join((HERE / name).read_text("utf-8") for name in ("run_head.js", "run_table.js")),
        server_functions=[json_reply(RunRows(board).since, "rows")],
        apply_default_css=False,
    )


class RunRows:
    """The rows of a runs directory with the version at which each last changed. Thread-safe."""

    def __init__(self, board: Board):
        self.runs_dir = board.runs_dir
        self._board = board
        self._lock = threading.Lock()
        self._states: dict[str, RunState] = {}
        self._rows: dict[str, tuple[int, dict[str, Any]]] = {}  # id -> (version, row)
        self._order: list[str] = []
        self._order_version = 0
        self._version = 0
        self._older = 0
        self._read_at = 0.0
        self._server = secrets.token_hex(4)  # another server counts versions anew

    def since(self, request: dict[str, Any]) -> dict[str, Any]:
        """{version, server} -> {version, server, now, more, rows: changed ones, order: all ids if that changed}.

        Of a directory that cannot be read {trouble: why}.
        """
        try:
            check_readable(self.runs_dir)
        except RunError as error:
            return {"trouble": sentence(str(error))}
        seen = request.get("version") if request.get("server") == self._server else 0
        seen = seen if type(seen) is int else 0
        with self._lock:
            if time.monotonic() - self._read_at > FRESH:
                self._read()
                self._read_at = time.monotonic()
            reply: dict[str, Any] = {"version": self._version, "server": self._server, "now": round(time.time(), 1)}
            reply["more"] = self._older
            reply["rows"] = [row for version, row in map(self._rows.__getitem__, self._order) if version > seen]
            if self._order_version > seen or not seen:
                reply["order"] = self._order
        return reply

    def _read(self) -> None:
        runs = list(iter_runs(self.runs_dir))
        self._older = max(0, len(runs) - LISTED)
        found = {run.id: self._row(run) for run in runs[:LISTED]}
        version = self._version + 1
        for run_id, row in found.items():
            if self._rows.get(run_id, (0, None))[1] != row:
                self._rows[run_id] = version, row
                self._version = version
        if list(found) != self._order:
            self._order, self._order_version, self._version = list(found), version, version
            self._rows = {run_id: self._rows[run_id] for run_id in found}
            self._states = {run_id: state for run_id, state in self._states.items() if run_id in found}

    def _row(self, run: Run) -> dict[str, Any]:
        """One run in figures."""
        state = self._states.setdefault(run.id, RunState(run))
        name, wanted, epochs = "", "", 0
        try:
            config = run.config()
            name, wanted, epochs = config.label, config.devices, config.epochs
            about = f"{config.model} on {config.dataset}, batch {config.batch_size:,}, lr {config.lr:g}"
        except ValueError as error:  # it may be at work all the same
            about = f"its settings cannot be read: {error}"[:300]
        state.read_all()
        waiting = self._board.place(run) if state.status == RunStatus.QUEUED else None
        newest = max((state.end, state.evaluation, state.step), key=lambda event: event.get("time", 0))
        started = state.process.get("started")
        return {
            "id": run.id,
            "name": name or run.id,
            "about": about,
            "state": str(state.status),
            "place": ordinal(waiting.place) if waiting else None,
            "mode": run.id.split("-")[2],
            "devices": devices(state.start.get("devices"), wanted),
            "best": state.best_accuracy,
            "speed": state.step.get("images_per_second"),
            "epoch": state.step.get("epoch") or 0,
            "epochs": epochs,
            "started": started,
            "began": max(state.start.get("time", 0), started) if started else None,  # without the preparations
            "ended": None if state.status.living else newest.get("time", started),
        }
