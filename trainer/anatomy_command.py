"""`python -m trainer anatomy`: where the time of a run's steps goes, as a table and a sentence. Imports no torch."""

import json
from pathlib import Path
from typing import Annotated, Any

import tyro

from trainer.anatomy import PARTS, slowest
from trainer.event_reader import read_events
from trainer.log import printable
from trainer.run_list import open_run
from trainer.runs import RunError
from trainer.verdict import Summary, summarise, verdict


def anatomy_command(
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="a run's id, its path, or `latest`")],
    runs_dir: Annotated[Path, tyro.conf.arg(help="where the run directories are")] = Path("runs"),
    json_: Annotated[bool, tyro.conf.arg(name="json", help="print one JSON document and nothing else")] = False,
) -> int:
    """Say where the time of a run's steps goes, on each rank, and what limits it."""
    _print(anatomy_of(runs_dir, run), json_)
    return 0


def anatomy_of(runs_dir: Path, reference: str) -> dict[str, Any]:
    """{run, steps: how many it is the mean of, seconds of one, ranks: [seconds of each part and `hidden`], slowest,
    verdict}. Raises RunError if the run noted nothing."""
    run = open_run(runs_dir, reference)
    events = read_events(run.events_path)
    step = summarise(events)
    start = next((event for event in reversed(events) if event["kind"] == "start"), {})
    if step is None:
        raise RunError(f"{run.id} has noted nothing of its steps: it has just begun, or is without the setting anatomy")
    late = slowest(step.ranks)
    return {
        "run": run.id,
        "steps": step.steps,
        "seconds": step.seconds,
        "ranks": step.ranks,
        "slowest": late[0] if late else None,
        "verdict": verdict(start, step),
    }


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    step = Summary(found["ranks"], found["steps"])
    parts = [name for name in PARTS if step.of(name) >= 5e-6]
    print(f"{found['run']}: milliseconds in a step, mean of {step.steps:,}")
    titles = ["", *parts, "in all", "hidden"]
    table = [titles, *([f"rank {rank}", *_cells(seconds, parts)] for rank, seconds in enumerate(step.ranks))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(printable(found["verdict"]))


def _cells(seconds: dict[str, float], parts: list[str]) -> list[str]:
    values = [*(seconds[name] for name in parts), sum(seconds[name] for name in PARTS), seconds["hidden"]]
    return [f"{1000 * value:.2f}" for value in values]
