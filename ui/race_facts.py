"""A race, or any runs side by side, as texts for the table in the page. Imports no gradio and no torch."""

import json
import os
import threading
import time
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from trainer.measure import Measured
from trainer.race import MOST_RUNS, iter_races, look_anew, side_by_side
from trainer.report import race_report, runs_report
from trainer.runs import RUN_ID, Run, RunError, RunStatus
from ui.race_words import about, ended, progress, table, title
from ui.supervisor import Supervisor

FRESH = 0.5  # seconds for which one look at a race serves all browsers
SHARE = 20  # a living run is measured again when the time since is so many times that of the measurement
KEPT = 256  # measured runs
LISTED = 50  # races


@dataclass(frozen=True)
class _Known:
    """What a run had measured when its files had this size."""

    sizes: tuple[Any, ...]
    measured: Measured | None
    at: float
    seconds: float  # that it took


class RaceFacts:
    """Answers what browsers ask about races. Thread-safe."""

    def __init__(self, supervisor: Supervisor):
        self.supervisor = supervisor
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, float], _Known] = OrderedDict()
        self._answers: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()

    def news(self, request: dict[str, Any]) -> dict[str, Any]:
        """{race: id} or {runs: [ids]}, and {seen} -> `look`, with the number by which it is `seen` the next time.

        What the page shows already is left out: then only {state, seen} arrive.
        """
        with self._lock:
            answer = self._fresh(request.get("race"), ids_of(request.get("runs")))
        seen = zlib.crc32(json.dumps(answer).encode())
        return {"state": answer["state"], "seen": seen} if seen == request.get("seen") else {**answer, "seen": seen}

    def report(self, request: dict[str, Any]) -> dict[str, Any]:
        """{race: id} or {runs: [ids]} -> {html, name}, or {reason} why there is none."""
        try:
            race_id = request.get("race")
            if isinstance(race_id, str):
                return {"html": race_report(self.supervisor.race(race_id)), "name": f"{race_id}.html"}
            runs = [self.supervisor.run(run_id) for run_id in ids_of(request.get("runs"))]
            return {"html": runs_report(runs), "name": "runs.html"}
        except ValueError as error:
            return {"reason": str(error)[:300]}

    def _fresh(self, race_id: Any, ids: list[str]) -> dict[str, Any]:
        key = json.dumps([race_id if isinstance(race_id, str) else None, ids])
        at, answer = self._answers.get(key, (0.0, {}))
        if not answer or time.monotonic() - at > FRESH:
            answer = self._look(race_id, ids)
            self._answers[key] = time.monotonic(), answer
            while len(self._answers) > MOST_RUNS:
                self._answers.popitem(last=False)
        return answer

    def look(self, race_id: Any, ids: list[str]) -> dict[str, Any]:
        """{race, state: none | on | stopped | done | failed | missing, about, progress, share, headline,
        columns: [[title, help]], rows, runs: ids for a chart}."""
        with self._lock:
            return self._look(race_id, ids)

    def _look(self, race_id: Any, ids: list[str]) -> dict[str, Any]:
        if not isinstance(race_id, str):
            return self._side_by_side(ids) if ids else {"race": None, "state": "none"}
        try:
            race = self.supervisor.race(race_id)
            plan = race.plan()
        except RunError as error:
            return {"race": race_id[:64], "state": "missing", "reason": str(error)}
        runs = race.runs()
        states = {run.id: self.supervisor.state(run) for run in runs}
        statuses = [state.status for state in states.values()]
        is_on = any(status.living or status == RunStatus.QUEUED for status in statuses)
        lanes = race.lanes(self._measured)
        return {
            "race": race.id,
            "state": "on" if is_on else ended(statuses),
            "about": about(plan),
            **progress([states[run.id] for run in runs]),
            **table(lanes, plan.target, plan.repeats, race),
            "runs": [lane.runs[0] for lane in plan.lanes if lane.runs],
        }

    def _side_by_side(self, ids: list[str]) -> dict[str, Any]:
        found = []
        for run_id in ids:
            try:
                found.append(self._measured(self.supervisor.run(run_id), 0.0))
            except RunError:  # deleted meanwhile
                continue
        known = [one for one in found if one]
        return {
            "race": None,
            "state": "done" if known else "missing",
            "about": f"{len(known)} runs side by side; those of one mode and number of devices share a row",
            "progress": "",
            "share": None,
            **table(side_by_side(known), 0.0, 1),
            "runs": [one.run for one in known],
        }

    def _measured(self, run: Run, target: float) -> Measured | None:
        """As `look_anew`, but what has not grown is not read again, and what grows takes a small share of the time."""
        known = self._known.get((run.id, target))
        is_living = self.supervisor.state(run).status.living if run.is_there else False
        sizes = (str(run.is_there), is_living, *(_size(run.path / name) for name in ("events.jsonl", "system.jsonl")))
        if known and (known.sizes == sizes or (is_living and time.monotonic() - known.at < SHARE * known.seconds)):
            return known.measured
        begun = time.monotonic()
        measured = look_anew(run, target)
        now = time.monotonic()
        self._known[run.id, target] = _Known(sizes, measured, now, now - begun)
        self._known.move_to_end((run.id, target))
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return measured

    def choices(self) -> list[tuple[str, str]]:
        """(words, id) of the newest races."""
        found = []
        for race in iter_races(self.supervisor.runs_dir):
            try:
                found.append((title(race, race.plan()), race.id))
            except RunError:  # another version's, or half written
                continue
            if len(found) == LISTED:
                break
        return found


def ids_of(sent: Any) -> list[str]:
    """The run ids in what a browser sent."""
    known = sent if isinstance(sent, list) else []
    return list(dict.fromkeys(i for i in known if isinstance(i, str) and RUN_ID.fullmatch(i)))[:MOST_RUNS]


def _size(path: os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
