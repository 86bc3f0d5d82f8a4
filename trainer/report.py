"""One HTML file that shows runs or a race to somebody who has neither the program nor a network. Imports no torch.

All that it shows is in the file, Plotly's JavaScript among it (some 5 MB), so its charts zoom offline.
"""

import json
import os
import time
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from trainer.config import TrainConfig
from trainer.event_reader import read_events
from trainer.files import write_atomic
from trainer.findings import findings
from trainer.measure import Measured, measure, that_stand, training_clock
from trainer.presets import command_line, to_argv
from trainer.race import MOST_RUNS, Race, side_by_side
from trainer.race_table import Lane, headline, rows, with_range
from trainer.runs import Run, RunError

HERE = Path(__file__).parent
POINTS = 2000  # rows of a curve at most, give or take a bin


def race_report(race: Race) -> str:
    """The report of a race. Raises RunError if its plan, or every one of its runs, cannot be read."""
    plan = race.plan()
    asked = [lane.entrant.word for lane in plan.lanes]
    try:
        flags = to_argv(TrainConfig(**plan.config))
    except ValueError:  # settings of another version of the program
        flags = []
    words = ["python -m trainer race", *asked, f"--scaling {plan.scaling}", f"--repeats {plan.repeats}", *flags]
    names = ", ".join(lane.entrant.name for lane in plan.lanes)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(plan.made))
    repeats = f", {plan.repeats} times" if plan.repeats > 1 else ""
    about = f"A race of {when}, {plan.scaling} scaling{repeats}. Every mode trained with the same seed and data."
    return _page(f"Race: {names}", about, race.runs(), race.lanes(), [" ".join(words)], race)


def runs_report(runs: Sequence[Run]) -> str:
    """The report of one run, or of several side by side. Raises RunError if none of them can be read."""
    found = [measure(run) for run in runs]
    title = "Runs side by side"
    if len(runs) == 1:
        title = runs[0].config().label or runs[0].id
    about = f"{len(runs)} runs; those of one mode and number of devices share a row." if len(runs) > 1 else ""
    return _page(title, about, runs, side_by_side(found), [command_line(one.config) for one in found])


def write_report(html: str, path: Path) -> None:
    """Raises RunError if the file cannot be written."""
    try:
        write_atomic(path, html)
    except OSError as error:
        raise RunError(f"output: {path} cannot be written: {error.strerror}") from error


def _page(
    title: str,
    about: str,
    runs: Sequence[Run],
    lanes: Sequence[Lane],
    commands: Sequence[str],
    race: Race | None = None,
) -> str:
    measured = [one for lane in lanes for one in lane.runs if one]
    if not measured:
        raise RunError("there is no run left to report on")
    by_id = {run.id: run for run in runs}
    curves = [curve(by_id[one.run], one) for one in measured[:MOST_RUNS] if one.run in by_id]
    found = rows(lanes)
    template = Template((HERE / "report.html").read_text("utf-8"))
    return template.substitute(
        title=escape(title),
        about=escape(about),
        headline=escape(headline(found)),
        race=_race_table(found),
        verdicts=_verdicts(found, findings(lanes, found, race)),
        settings=_settings([one.config for one in measured], [one.run for one in measured]),
        machine=_machine(measured, by_id),
        commands="\n".join(escape(command) for command in dict.fromkeys(commands)),
        made=time.strftime("%Y-%m-%d %H:%M"),
        curves=json.dumps(curves, allow_nan=False).replace("<", "\\u003c"),
        plotly=_plotly(),
    )


def _plotly() -> str:
    """Plotly's JavaScript, as the package brings it; the package itself is not imported."""
    spec = find_spec("plotly")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = os.path.join(folder, "package_data", "plotly.min.js")
        if os.path.exists(path):
            return Path(path).read_text("utf-8").replace("</script", "<\\/script")
    raise RunError("plotly is not installed: without it a report has no charts")


# Curves


def curve(run: Run, measured: Measured) -> dict[str, Any]:
    """{name, step, pictures, minutes, loss, tests: {step, pictures, minutes, accuracy}}; accuracy in percent.

    The minutes are those of training: the time between two processes of one run is left out.
    """
    batch_size = measured.config.batch_size
    columns: dict[str, list[Any]] = {name: [] for name in ("step", "pictures", "minutes", "loss")}
    tests: dict[str, list[Any]] = {name: [] for name in ("step", "pictures", "minutes", "accuracy")}
    for event, seconds in training_clock(that_stand(read_events(run.events_path))):
        into, value = columns, event.get("loss")
        if event["kind"] == "eval":
            into, value = tests, 100 * event["accuracy"] if event.get("accuracy") is not None else None
        elif event["kind"] != "step":
            continue
        step = event.get("step", 0)
        for column, item in zip(into.values(), (step, step * batch_size, round(seconds / 60, 4), value), strict=True):
            column.append(item)
    kept = thin(columns["loss"])
    name = measured.config.label or run.id
    return {"name": name, **{key: [column[i] for i in kept] for key, column in columns.items()}, "tests": tests}


def thin(values: Sequence[float | None], points: int = POINTS) -> list[int]:
    """Which rows to draw, in order: the least and the largest value and a gap of each bin, and both ends."""
    if len(values) <= points:
        return list(range(len(values)))
    size = -(-2 * len(values) // points)
    kept = {0, len(values) - 1}
    for begin in range(0, len(values), size):
        rows_of_bin = range(begin, min(begin + size, len(values)))
        known = [i for i in rows_of_bin if values[i] is not None]
        if known:
            kept |= {min(known, key=values.__getitem__), max(known, key=values.__getitem__)}  # type: ignore[arg-type]
        kept |= {*[i for i in rows_of_bin if values[i] is None][:1]}  # a loss that was no number leaves its gap
    return sorted(kept)


# Tables


def _race_table(found: Sequence[dict[str, Any]]) -> str:
    heads = ["Mode", "Devices", "Batch", "Images/s", "ms a step", "Speed-up", "Efficiency", "Time to accuracy"]
    heads += ["Peak memory", "Test accuracy", "Energy", "Repeats", "State"]
    lines = []
    for row in found:
        memory = ", ".join(f"{name} {peak / 1e9:.2f} GB" for name, peak in row["peak_memory"].items())
        lines.append(
            [
                row["name"],
                row["devices"] or "-",
                f"{row['batch_size']:,}" if row["batch_size"] else "-",
                with_range(row, "images_per_second", "{:,.0f}"),
                with_range(row, "seconds_per_step", "{:,.1f}", 1000),
                with_range(row, "speed_up", "{:.2f}x"),
                with_range(row, "efficiency", "{:.0%}"),
                with_range(row, "seconds_to_target", "{:,.0f} s"),
                memory or "-",
                with_range(row, "accuracy", "{:.2f} %", 100),
                with_range(row, "joules", "{:,.1f} kJ", 1e-3),
                str(row["repeats"]),
                row["status"] + (f": {row['reason'][:300]}" if row["reason"] else ""),
            ]
        )
    is_told = {head: any(line[i] != "-" for line in lines) for i, head in enumerate(heads)}
    is_told["Efficiency"] &= any(row["runs"] and not row["is_cpu"] for row in found)  # a CPU is one device
    shown = [i for i, head in enumerate(heads) if is_told[head]]
    return _table([heads[i] for i in shown], [[line[i] for i in shown] for line in lines])


def _verdicts(found: Sequence[dict[str, Any]], more: Sequence[str]) -> str:
    """What limits each mode, and what else is to be told."""
    said = [f"<li><b>{escape(row['name'])}</b>: {escape(row['verdict'])}</li>" for row in found if row["verdict"]]
    limits = f"<h2>What limits it</h2>\n<ul>{''.join(said)}</ul>" if said else ""
    return limits + "".join(f"<p>{escape(sentence)}</p>" for sentence in more)


def _settings(configs: Sequence[TrainConfig], names: Sequence[str]) -> str:
    """All settings; those in which the runs differ have a column for each run."""
    values = [config.model_dump() for config in configs]
    same: list[list[str]] = []
    different: list[list[str]] = []
    for field in TrainConfig.model_fields:
        said = [_value(found[field]) for found in values]
        (same if len(set(said)) == 1 else different).append([field, *said])
    tables = _table(["Setting", *names], different) if different else ""
    return tables + _table(["Setting", "Value" if len(configs) == 1 else "All runs"], [row[:2] for row in same])


def _machine(measured: Sequence[Measured], by_id: dict[str, Run]) -> str:
    lines, software = [], set()
    for one in measured:
        run = by_id.get(one.run)
        start = run.state().start if run else {}
        known = (run.process() or {}).get("versions") if run else None
        if isinstance(known, dict):
            software.add(", ".join(f"{name} {version}" for name, version in known.items()))
        others = "-" if one.others is None else f"{one.others:.0%}"
        processes = f"{one.world_size}, {start.get('threads', '?')} threads each" if one.world_size else "-"
        chosen = [one.precision, *(str(start[key]) for key in ("backend", "memory_format") if start.get(key))]
        devices = ", ".join(dict.fromkeys(one.devices)) or "-"
        lines.append([one.run, devices, processes, ", ".join(filter(None, chosen)), f"{one.seconds:,.0f} s", others])
    table = _table(["Run", "Devices", "Processes", "Chosen", "Time", "CPU taken by other programs"], lines)
    return table + "".join(f"<p>{escape(words)}</p>" for words in sorted(software))


def _value(value: object) -> str:
    return '""' if value == "" else str(value)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="frame"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
