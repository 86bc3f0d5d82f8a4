"""A forecast in words: its table, its assumptions, how far off it was. Imports no torch."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from trainer.calibration import Calibration
from trainer.forecast import BACKWARD, BUCKET, Network
from trainer.race_table import DISTURBING

COLUMNS = ("mode", "batch a rank", "images/s", "ms a step", "speed-up", "efficiency", "exchange")
AGAINST_COLUMNS = ("mode", "predicted ms", "measured ms", "error", "predicted speed-up", "measured speed-up")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of `forecast` or `cluster` for `COLUMNS`; an asterisk marks what goes beyond the calibration."""
    return (
        row["name"] + ("" if row["is_calibrated"] else " *"),
        str(row["per_device_batch"]),
        f"{row['images_per_second']:,.0f}",
        f"{1000 * row['seconds_per_step']:.1f}",
        f"{row['speed_up']:.2f}",
        f"{row['efficiency']:.0%}",
        f"{row['exchange_share']:.0%}",
    )


def against_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of `beside` for `AGAINST_COLUMNS`."""
    return (
        row["name"],
        _number(row["predicted"], "{:.1f}", 1000),
        _number(row["measured"], "{:.1f}", 1000),
        _number(row["error"], "{:+.1f} %", 100),
        _number(row["predicted_speed_up"], "{:.2f}"),
        _number(row["speed_up"], "{:.2f}"),
    )


def _number(value: float | None, form: str, factor: float = 1) -> str:
    return "-" if value is None else form.format(factor * value)


def assumptions(
    calibration: Calibration, rows: Sequence[dict[str, Any]], scaling: str | None, network: Network | None
) -> list[str]:
    """What the rows rest on, a sentence each. scaling: that of all rows, if they have one."""
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(calibration.made))
    counts = _list([str(count) for count in sorted(calibration.counts)])
    found = [
        f"Measured {made} in {calibration.took:.0f} s: {calibration.model} in {calibration.precision} on "
        f"{calibration.device}, with {counts} {'rank' if counts == '1' else 'ranks'} at work.",
        *([_scaling_words(scaling)] if scaling else []),
        f"Each step exchanges {calibration.gradient_bytes / 1e6:.1f} MB of gradients in fp32.",
    ]
    for count in sorted({point.ranks for point in calibration.exchange}):
        line = calibration.exchange_line(count)
        speed = f" and {1e-9 / line.slope:.2f} GB/s" if line.slope else ""
        found.append(f"An exchange over {count} ranks here: {1000 * line.fixed:.2f} ms{speed}.")
    if calibration.is_cpu:
        found.append(
            f"The ranks share {calibration.cores} cores, which counts as one device: the exchange is work for the same "
            "cores, so none of it is hidden behind backward."
        )
    else:
        found.append(
            f"The exchange is hidden behind backward, {BACKWARD:.0%} of the compute, all but its last bucket of up to "
            f"{BUCKET / 2**20:.0f} MiB."
        )
    if any(not row["is_calibrated"] for row in rows):
        found.append(f"* reckoned beyond what was measured. {_beyond(calibration)}")
    if network:
        found.append(
            f"Between machines: {network.gbit:g} Gbit/s of which {network.attained:.0%} are reached, "
            f"{network.latency_us:g} us a message, a ring or a tree, whichever is faster; nobody else on the network."
        )
        found.append(
            f"Every step waits for the slowest rank: steps of one rank vary by {calibration.spread:.1%} "
            "(standard deviation), independently of each other."
        )
        if not calibration.is_cpu and not calibration.exchange and rows[0]["ranks"] > rows[0]["machines"]:
            found.append("No exchange within a machine was measured: its devices count as joined by the network.")
    if calibration.others >= DISTURBING:
        found.append(
            f"Other programs took {calibration.others:.0%} of this machine while it was measured: forecast again when "
            "it is idle."
        )
    found.append("Not in it: reading pictures from a disk, evaluations, checkpoints, other programs.")
    return found


def _scaling_words(scaling: str) -> str:
    if scaling == "strong":
        return "Strong scaling: the batch of all ranks together stays the same."
    return "Weak scaling: the batch of each rank stays the same."


def _beyond(calibration: Calibration) -> str:
    if calibration.is_cpu:
        return "More ranks on these cores take longer in the same ratio; on other machines there are cores like these."
    return "Other devices are like the ones that were measured."


def verdict(rows: Sequence[dict[str, Any]], calibration: Calibration) -> str:
    """How far off a forecast was, in words."""
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    if not errors:
        return "Nothing of this race can be forecast: nn.DataParallel is left out."
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(calibration.made))
    each = [
        f"{row['name']} {1000 * row['predicted']:.1f} ms a step ({row['error']:+.0%})"
        for row in rows
        if row["error"] is not None
    ]
    words = f"The forecast of {made} was {_list(each)}: off by {median(errors):.0%} in the median."
    most = max((row["others"] or 0 for row in rows), default=0)
    if most >= DISTURBING:
        words += f" Other programs took up to {most:.0%} of this machine during the race."
    return words


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
