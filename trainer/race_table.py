"""The table of a race: measured runs by mode, side by side, with speed-ups. Imports no torch.

The speed-up of a mode is its pictures a second over those of one device (T1 / Tn at the same work), taken between
runs of the same repeat, which ran near each other in time; its efficiency is the speed-up for each device. A CPU counts
as one device however many ranks share it, so there the two are the same and 1 is what one process reaches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from trainer.measure import Measured

DISTURBING = 0.1  # share of the cores from which other programs change what is measured on them


@dataclass(frozen=True)
class Lane:
    """One mode of a race with a measured run for each repeat; None where it was not run yet, or could not be."""

    name: str  # as in "ddp x2"
    parallel: str
    processes: int
    runs: Sequence[Measured | None]
    refusal: str = ""  # why this machine cannot run it; "" if it can
    is_changed: bool = False  # it differs from the race's settings in more than its mode

    def rates(self) -> list[float | None]:
        return [run.images_per_second if run else None for run in self.runs]


def rows(lanes: Sequence[Lane]) -> list[dict[str, Any]]:
    """One row a lane, in their order: numbers are medians over the repeats, `*_range` the least and the largest.

    Keys: name, parallel, processes, devices, batch_size, lr, precision, is_cpu, status, reason, repeats (measured),
    images_per_second, seconds_per_step, speed_up, efficiency, peak_memory {device: bytes}, seconds_to_target, accuracy,
    joules, others (the most of its runs), is_changed, verdict (of the newest run that has one), runs (ids).
    """
    base = baseline(lanes)
    return [_row(lane, base) for lane in lanes]


def baseline(lanes: Sequence[Lane]) -> Lane | None:
    """What the others are compared with: `single`, else one rank of ddp; of a lesson that has neither, its first."""
    plain = [lane for lane in lanes if not lane.is_changed]
    wanted = [lane for lane in plain if lane.parallel == "single"] or [lane for lane in plain if lane.processes == 1]
    if not wanted and len(plain) < len(lanes):
        wanted = plain or [*lanes]
    return wanted[0] if wanted else None


def headline(found: Sequence[dict[str, Any]]) -> str:
    """What the rows of `rows` say in words: the fastest, how the others stand to it, and how sure that is; "" if
    nothing was measured."""
    known = sorted((row for row in found if row["images_per_second"]), key=lambda row: -row["images_per_second"])
    if not known:
        return ""
    first, *others = known
    speed = f"{first['images_per_second']:,.0f} images/s"
    if not others:
        words = [f"{first['name']} trains {speed}; no other mode has been measured to compare it with."]
        return " ".join([*words, *_disturbed(known)])
    close = [row for row in others if row["images_per_second_range"][1] >= first["images_per_second_range"][0]]
    is_repeated = min(row["repeats"] for row in known) > 1
    if close and is_repeated:
        names = _list([first["name"], *(row["name"] for row in close)])
        words = [f"{names} overlap over the repeats: which of them is faster is not certain."]
        words.append(f"{first['name']} trains {speed}.")
    else:
        words = [f"{first['name']} is the fastest here: {speed}."]
    shares = [(row["name"], f"{100 * row['images_per_second'] / first['images_per_second']:.0f} %") for row in others]
    reached = [f"{name} {share}" for name, share in shares[1:]]
    words.append(_list([f"{shares[0][0]} reaches {shares[0][1]} of that", *reached]) + ".")
    if not is_repeated:
        words.append("Measured once: only repeats tell whether a small difference is one.")
    if first["is_cpu"] and max(row["processes"] for row in known) > 1:
        words.append("The ranks share this CPU: more of them add no cores.")
    return " ".join([*words, *_disturbed(known)])


def _disturbed(known: Sequence[dict[str, Any]]) -> list[str]:
    """A word on what else the machine did, where it may have changed the numbers."""
    most = max((row["others"] or 0 for row in known if row["is_cpu"]), default=0)
    if most < DISTURBING:
        return []
    return [f"Other programs took up to {100 * most:.0f} % of this CPU meanwhile: race again when it is idle."]


def with_range(row: dict[str, Any], key: str, form: str, factor: float = 1) -> str:
    """A number of a row in words: the median, with the range over the repeats where there are several."""
    if row[key] is None:
        return "-"
    least, most = (form.format(factor * value) for value in row[f"{key}_range"])
    middle = form.format(factor * row[key])
    return middle if least == most else f"{middle} ({least} to {most})"


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _row(lane: Lane, base: Lane | None) -> dict[str, Any]:
    done = [run for run in lane.runs if run]
    measured = [run for run in done if run.images_per_second]
    newest = done[-1] if done else None
    speed_ups = _ratios(lane.rates(), base.rates()) if base else []
    num_devices = max((run.num_devices for run in done), default=1)
    row: dict[str, Any] = {
        "name": lane.name,
        "parallel": lane.parallel,
        "processes": lane.processes,
        "devices": ", ".join(dict.fromkeys(newest.devices)) if newest else "",
        "batch_size": newest.config.batch_size if newest else None,
        "lr": newest.config.lr if newest else None,
        "precision": newest.precision if newest else "",
        "is_cpu": any(run.is_cpu for run in done),
        "status": _status(lane, done),
        "reason": lane.refusal or next((run.error for run in done if run.error), ""),
        "repeats": len(measured),
    }
    row |= _spread("images_per_second", [run.images_per_second for run in measured])
    row |= _spread("seconds_per_step", [run.config.batch_size / run.images_per_second for run in measured])  # type: ignore[operator]
    row |= _spread("speed_up", speed_ups)
    is_from_one = base is not None and base.processes == 1  # else the ratio is no speed-up over one device
    row |= _spread("efficiency", [ratio / num_devices for ratio in speed_ups] if is_from_one else [])
    row |= _spread("accuracy", [run.accuracy for run in done])
    row |= _spread("seconds_to_target", [run.seconds_to_target for run in done])
    row |= _spread("joules", [run.joules for run in done])
    row["peak_memory"] = {}
    for run in done:
        for name, peak in run.peak_memory.items():
            row["peak_memory"][name] = max(row["peak_memory"].get(name, 0), peak)
    row["others"] = max((run.others for run in done if run.others is not None), default=None)
    row["is_changed"] = lane.is_changed
    row["verdict"] = next((run.verdict for run in reversed(done) if run.verdict), "")
    row["runs"] = [run.run for run in done]
    return row


def _status(lane: Lane, done: Sequence[Measured]) -> str:
    """`refused`, `completed` if all repeats are, else that of the first that is not."""
    if lane.refusal:
        return "refused"
    return next((str(run.status) for run in done if run.status != "completed"), "completed" if done else "queued")


def _ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float]:
    return [mine / other for mine, other in zip(ours, theirs, strict=False) if mine and other]


def _spread(name: str, values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    return {
        name: median(known) if known else None,
        f"{name}_range": [min(known), max(known)] if known else None,
    }
