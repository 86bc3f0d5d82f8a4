"""What the page shows of the inside of a run: lanes of the newest steps, their mean, its course, and who is at work."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import psutil

from trainer.anatomy import PARTS, Moment, means, read_ranks, slowest
from trainer.events import Event
from trainer.processes import Identity, alive, recorded_identity
from trainer.runs import RUN_ID, Run
from ui.curves import Curves, History

LANE_STEPS = 6  # drawn one by one, at most
MEAN_STEPS = 5  # the newest, of which the table is the mean; few, so that a change is seen at once
BARS = 60  # in the picture of the course, at most
MAX_RANKS = 16  # drawn; more do not fit a page


def inside_reply(curves: Curves, request: dict[str, Any]) -> dict[str, Any]:
    """{run, steps: how many to draw} -> {run, empty: why there is nothing, lanes, parts, means, slowest, course,
    processes}; times in milliseconds."""
    run_id = request.get("run")
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        return {"run": None, "empty": ""}
    try:
        with curves.history(run_id) as history:
            run, state, events = history.run, history.state, [*history.anatomy]
            start, process, is_living = dict(state.start), dict(state.process), state.status.living
            empty = _why_empty(history)
    except ValueError:  # deleted, or never there
        return {"run": run_id, "empty": ""}
    rows = read_ranks(run, min(start.get("world_size", 1), MAX_RANKS))
    reply: dict[str, Any] = {"run": run_id, "empty": "" if rows.shape[1] else empty}
    reply["processes"] = _processes(run, start, process) if is_living else []
    if rows.shape[1]:
        found = means(rows[:, -MEAN_STEPS:])
        late = slowest(found)
        reply |= {
            "lanes": lanes(rows[:, -_lane_steps(request.get("steps")) :]),
            "parts": [name for name in PARTS if any(rank[name] >= 5e-6 for rank in found)],
            "means": [{name: _ms(value) for name, value in rank.items()} for rank in found],
            "slowest": {"rank": late[0], "ms": _ms(late[1])} if late else None,
            "course": course(events),
        }
    return reply


def _lane_steps(wanted: Any) -> int:
    return wanted if type(wanted) is int and 1 <= wanted <= LANE_STEPS else LANE_STEPS


def _why_empty(history: History) -> str:
    with suppress(ValueError):
        if not history.run.config().anatomy:
            return "This run does not look inside its steps: the setting is off."
    if history.state.status.living:
        return "The first steps are under way."
    return "Nothing was noted: the run is older than this view, or no epoch of it had two steps."


def lanes(rows: np.ndarray) -> dict[str, Any]:
    """{steps, ms: from the first moment to the last, ranks: [[[part, begin, length], ...], ...]} in milliseconds.

    rows: (ranks, n, columns) as `read_ranks` gives them. A rank waits at an exchange until the last one arrives.
    """
    moments = rows[:, :, 1 : 1 + len(Moment)]
    origin = float(moments.min())
    last = {arrival: moments[:, :, arrival].max(axis=0) for arrival in (Moment.READY, Moment.ARRIVE)}
    met_part = "exchange" if len(rows) > 1 else "other"
    drawn = []
    for rank in moments:
        segments = []
        for index, at in enumerate(rank):
            met = [min(float(last[a][index]), float(at[a + 1])) for a in (Moment.READY, Moment.ARRIVE)]
            ends = [
                ("data", at[Moment.DATA]),
                ("forward", at[Moment.FORWARD]),
                ("backward", at[Moment.READY]),
                ("waiting", met[0]),
                ("exchange", at[Moment.BACKWARD]),
                ("optimizer", at[Moment.OPTIMIZER]),
                ("other", at[Moment.ARRIVE]),
                ("waiting", met[1]),
                (met_part, at[Moment.MEET]),
                ("other", at[Moment.END]),
            ]
            begin = float(at[Moment.BEGIN])
            for part, end in ends:
                if end - begin >= 5e-6:
                    segments.append([part, _ms(begin - origin), _ms(float(end) - begin)])
                begin = float(end)
        drawn.append(segments)
    steps = [int(step) for step in rows[0, :, 0]]
    return {"steps": steps, "ms": _ms(float(moments.max()) - origin), "ranks": drawn}


def course(events: Sequence[Event]) -> list[dict[str, Any]]:
    """[{step, ms: {part: mean over the ranks}}], the events of one process drawn together to at most `BARS`."""
    size = -(-len(events) // BARS)
    bars = []
    for first in range(0, len(events), max(1, size)):
        group = events[first : first + size]
        steps = sum(event["steps"] for event in group)
        total = {
            name: sum(
                event["steps"] * sum(rank.get(name, 0.0) for rank in event["ranks"]) / len(event["ranks"])
                for event in group
            )
            for name in PARTS
        }
        bars.append(
            {"step": group[-1]["step"], "ms": {name: _ms(part / steps) for name, part in total.items() if part}}
        )
    return bars


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


def _processes(run: Run, start: Event, process: dict[str, Any]) -> list[dict[str, Any]]:
    """[{name, pid, device, threads, step, memory: bytes, cpu: seconds used so far, held: whether it is suspended}]."""
    records = {record.get("rank"): record for record in run.rank_records()}
    launcher = recorded_identity(process)
    devices = start.get("devices") or [""]
    found = []
    in_launcher = launcher is not None and any(recorded_identity(record) == launcher for record in records.values())
    if launcher and not in_launcher:
        found.append({"name": "launcher", "device": "", "threads": None, "step": None, **_use(launcher)})
    for rank in sorted(key for key in records if isinstance(key, int))[:MAX_RANKS]:
        known = recorded_identity(records[rank])
        found.append(
            {
                "name": "trainer" if in_launcher else f"rank {rank}",
                "device": _device(devices, rank, in_launcher),
                "threads": start.get("threads"),
                "step": records[rank].get("step"),
                **(_use(known) if known else {}),
            }
        )
    return [row for row in found if "pid" in row]


def _device(devices: Sequence[str], rank: int, is_alone: bool) -> str:
    if is_alone:
        return ", ".join(devices)
    return devices[rank] if rank < len(devices) else devices[-1]


def _use(known: Identity) -> dict[str, Any]:
    if not alive(known):
        return {}
    with suppress(psutil.Error):
        process = psutil.Process(known[0])
        with process.oneshot():
            times = process.cpu_times()
            return {
                "pid": known[0],
                "memory": process.memory_info().rss,
                "cpu": round(times.user + times.system, 2),
                "held": process.status() == psutil.STATUS_STOPPED,
            }
    return {}
