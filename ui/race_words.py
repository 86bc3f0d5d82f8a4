"""A race in words: its name, how far it is, its table. Imports no gradio and no torch."""

import time
from collections.abc import Sequence
from typing import Any

from trainer.findings import findings
from trainer.race import AGAIN, Plan, Race
from trainer.race_table import Lane, headline, rows
from trainer.runs import RunState, RunStatus
from ui.run_facts import duration


def title(race: Race, plan: Plan) -> str:
    """As in '7 Dec 14:02, single, ddp x2'."""
    when = time.strftime("%d %b %H:%M", time.localtime(plan.made)).lstrip("0")
    names = [lane.entrant.name for lane in plan.lanes]
    label = str(plan.config.get("label") or "")[:64]
    return ", ".join([when, *([label] if label else []), *names])


def about(plan: Plan) -> str:
    """What was asked for, in words."""
    config = plan.config
    until = f"until {100 * plan.target:g} % accuracy, at most " if plan.target else ""
    steps = config.get("max_steps")
    how_long = f"{until}{steps:,} steps" if steps else f"{until}{_count(config.get('epochs'), 'epoch')}"
    words = {
        "strong": f"one batch of {config.get('batch_size')} over all devices",
        "weak": f"a batch of {config.get('batch_size')} for each device, lr grows with their number",
    }[plan.scaling]
    repeats = f", {plan.repeats} times, there and back" if plan.repeats > 1 else ""
    return f"{config.get('model')} on {config.get('dataset')}, {words}, {how_long}, seed {config.get('seed')}{repeats}"


def _count(number: Any, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ended(statuses: Sequence[RunStatus]) -> str:
    """The state of a race of which nothing is at work or waits."""
    if not statuses:
        return "missing"
    if any(status in (RunStatus.FAILED, RunStatus.DIVERGED) for status in statuses):
        return "failed"
    return "stopped" if any(status in AGAIN for status in statuses) else "done"


def progress(states: Sequence[RunState]) -> dict[str, Any]:
    """{progress: 'Run 2 of 4: step 120 of 200', share: of the whole race that is done, from 0 to 1}."""
    done, now = 0.0, ""
    for number, state in enumerate(states, 1):
        total, step = state.start.get("total_steps") or 0, state.step.get("step") or 0
        if state.status.living:
            share = min(1.0, step / total) if total else 0.0
            done += share
            where = f"step {step:,} of {total:,}" if total and step else state.progress or "starts"
            now = now or f"Run {number} of {len(states)}: {where}"
        elif state.status not in (RunStatus.QUEUED, *AGAIN):
            done += 1
    queued = sum(state.status == RunStatus.QUEUED for state in states)
    if not now and queued:
        now = f"{_count(queued, 'run')} in the queue"
    return {"progress": now[:200], "share": round(done / len(states), 3) if states else 0.0}


# The table

_ALWAYS = [
    ("Images/s", "pictures a second, median of the points after the first five steps"),
    ("ms a step", "time for one step of all devices"),
    ("Speed-up", "images/s against one device in the same round"),
]
_EFFICIENCY = ("Efficiency", "speed-up for each device")
_TARGET = ("Time to accuracy", "training time until the target was reached")
_ENERGY = ("Energy", "of the GPUs, while it trained")
_LAST = [("Memory", "peak; on a CPU of all its processes"), ("Test accuracy", "at the last evaluation")]


def table(lanes: Sequence[Lane], target: float, repeats: int, race: Race | None = None) -> dict[str, Any]:
    found = rows(lanes)
    best = max((row["images_per_second"] or 0 for row in found), default=0)
    on_gpus = any(row["runs"] and not row["is_cpu"] for row in found)
    has_energy = any(row["joules"] for row in found)
    optional = [(on_gpus, _EFFICIENCY), (bool(target), _TARGET), (has_energy, _ENERGY)]
    shown = [column for is_shown, column in optional if is_shown]
    columns = [*_ALWAYS, *shown, *_LAST]
    return {
        "headline": headline(found),
        "findings": findings(lanes, found, race),
        "columns": columns,
        "rows": [_row(lane, row, columns, best, repeats) for lane, row in zip(lanes, found, strict=True)],
    }


def _row(
    lane: Lane, row: dict[str, Any], columns: Sequence[tuple[str, str]], best: float, repeats: int
) -> dict[str, Any]:
    cells = {
        "Images/s": _cell(row, "images_per_second", _three),
        "ms a step": _cell(row, "seconds_per_step", lambda value: _three(1000 * value)),
        "Speed-up": _cell(row, "speed_up", "{:.2f}x".format),
        "Efficiency": _cell(row, "efficiency", "{:.0%}".format),
        "Time to accuracy": _cell(row, "seconds_to_target", duration),
        "Energy": _cell(row, "joules", lambda value: f"{_three(value / 1000)} kJ"),
        "Memory": _memory(row["peak_memory"]),
        "Test accuracy": _cell(row, "accuracy", lambda value: f"{100 * value:.2f} %"),
    }
    size = f"batch {row['batch_size']:,}" if row["batch_size"] else ""
    return {
        "name": row["name"],
        "about": ", ".join(filter(None, [row["devices"], size])),
        "status": row["status"],
        "state": _state(lane, row, repeats),
        "share": round((row["images_per_second"] or 0) / best, 3) if best else 0,
        "cells": [cells[name] for name, _ in columns],
        "reason": row["reason"][:600],
        "verdict": row["verdict"][:600],
    }


def _state(lane: Lane, row: dict[str, Any], repeats: int) -> str:
    if lane.refusal:
        return "Not possible here"
    done = sum(run is not None and run.status == RunStatus.COMPLETED for run in lane.runs)
    words = {"completed": "Done"}.get(row["status"], row["status"].capitalize())
    return f"{words}, {done} of {len(lane.runs)}" if len(lane.runs) > 1 and done < len(lane.runs) else words


def _cell(row: dict[str, Any], key: str, form: Any) -> list[str]:
    """[the median, the range over the repeats or ""]."""
    if row[key] is None:
        return ["-", ""]
    least, most = (form(value) for value in row[f"{key}_range"])
    return [form(row[key]), f"{least} to {most}" if least != most else ""]


def _memory(peaks: dict[str, int]) -> list[str]:
    if not peaks:
        return ["-", ""]
    each = [f"{name} {peak / 1e9:.2f} GB" for name, peak in peaks.items()]
    return [f"{max(peaks.values()) / 1e9:.2f} GB", ", ".join(each) if len(each) > 1 else ""]


def _three(value: float) -> str:
    """At least three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
