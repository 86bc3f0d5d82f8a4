"""How fast more devices would be, reckoned from a short calibration. Arithmetic only: imports no torch.

A step of ddp takes its compute, and what is seen of the exchange of gradients. The model, what it leaves out and how
far off it was stand in docs/forecast.md.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.calibration import MOST_DEVICES, Calibration, Frozen
from trainer.config import ConfigError

FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20  # bytes: DDP's defaults; the first one is small to begin the exchange early
BACKWARD = 2 / 3  # of a step's compute: backward multiplies twice what forward does, by the weights and by the inputs
Scaling = Literal["strong", "weak"]


class Network(Frozen):
    """What joins the machines."""

    gbit: Annotated[float, Field(gt=0, le=100_000)] = 100.0  # of each machine, in 10^9 bits a second and direction
    latency_us: Annotated[float, Field(ge=0, le=1e6)] = 5.0  # of one message, in microseconds
    attained: Annotated[float, Field(gt=0, le=1)] = 0.8  # share of `gbit` that an exchange reaches

    def all_reduce(self, count: int, size: float, messages: int = 1) -> float:
        """Seconds for an all-reduce of `size` bytes over `count` members, cut into `messages` buckets.

        Each member sends and receives 2 (n - 1) / n of the bytes, the least that is possible (P. Patarasuk and X. Yuan,
        "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009). Of latencies a ring
        takes 2 (n - 1) for each bucket, a tree or recursive halving and doubling 2 log2 n (R. Thakur, R. Rabenseifner,
        W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005); libraries choose.
        """
        if count == 1:
            return 0.0
        hops = min(2 * (count - 1), 2 * math.ceil(math.log2(count)))
        carried = 2 * (count - 1) / count * size
        return messages * hops * self.latency_us * 1e-6 + 8 * carried / (self.gbit * 1e9 * self.attained)


def num_buckets(size: int) -> int:
    """Into how many pieces DDP cuts so many bytes of gradients."""
    return 1 + math.ceil(max(0, size - FIRST_BUCKET) / BUCKET)


def slowest_of(count: int, spread: float) -> float:
    """How many times its median the slowest of `count` ranks takes, where the steps of one are normally distributed
    with this relative standard deviation (Blom's approximation of the largest of n)."""
    return 1 + spread * NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def seen_of(is_cpu: bool, compute: float, exchange: float, last_bucket: float) -> float:
    """Seconds by which an exchange makes the step longer.

    DDP exchanges what is ready while backward goes on, all but the last bucket (S. Li et al., "PyTorch Distributed:
    Experiences on Accelerating Data Parallel Training", VLDB 2020). On a CPU the exchange is work for the same cores,
    so nothing of it is hidden.
    """
    return exchange if is_cpu else max(min(last_bucket, exchange), exchange - BACKWARD * compute)


def forecast(
    calibration: Calibration, batch_size: int, counts: Sequence[int], scaling: Scaling = "strong"
) -> list[dict[str, Any]]:
    """One row for each number of ranks of this machine; 1 is `single`.

    strong: `batch_size` pictures over all ranks; weak: so many for each. Raises ConfigError. The keys are those of
    `_row`, times in seconds; efficiency is the speed-up for each device, and a CPU is one device.
    """
    check(batch_size, counts, scaling)
    rows = []
    for count in counts:
        share = _share(batch_size, count, scaling)
        compute = calibration.compute_seconds(count, share)
        if not calibration.is_cpu and count not in calibration.counts:
            compute *= slowest_of(count, calibration.spread) / slowest_of(max(calibration.counts), calibration.spread)
        last = calibration.exchange_seconds(count, min(BUCKET, calibration.gradient_bytes))
        exchange = calibration.exchange_seconds(count), last
        name = "single" if count == 1 else f"ddp x{count}"
        rows.append(_row(calibration, name, (1, count), share, compute, exchange, batch_size))
    return rows


def cluster(
    calibration: Calibration,
    batch_size: int,
    counts: Sequence[int],
    gpus: int,
    network: Network,
    scaling: Scaling = "weak",
) -> list[dict[str, Any]]:
    """One row for each number of machines with `gpus` devices each; of CPUs with one rank each, where `gpus` is 1.

    Gradients are averaged within the machines, then between them. Where no exchange within a machine was calibrated,
    its devices count as if each pair was joined by the network. Raises ConfigError.
    """
    check(batch_size, counts, scaling, gpus)
    check_gpus(gpus, calibration.is_cpu)
    is_linked = gpus > 1 and bool(calibration.exchange)
    size, spread = calibration.gradient_bytes, calibration.spread
    calibrated = min(gpus, max(calibration.counts))
    rows = []
    for machines in counts:
        count = machines * gpus
        share = _share(batch_size, count, scaling)
        compute = calibration.compute_seconds(gpus, share) * slowest_of(count, spread) / slowest_of(calibrated, spread)
        both = []
        for bytes_, messages in ((size, num_buckets(size)), (min(BUCKET, size), 1)):
            members = machines if is_linked else count
            within = calibration.exchange_seconds(gpus, bytes_) if is_linked else 0.0
            both.append(within + network.all_reduce(members, bytes_, messages))
        name = f"{machines} x {gpus}"
        rows.append(_row(calibration, name, (machines, gpus), share, compute, (both[0], both[1]), batch_size))
    return rows


def _row(
    calibration: Calibration,
    name: str,
    shape: tuple[int, int],
    share: int,
    compute: float,
    exchange: tuple[float, float],
    base_batch: int,
) -> dict[str, Any]:
    """shape: machines, ranks of each. share: pictures a rank. exchange: of everything, of the last bucket."""
    machines, ranks = shape
    count = machines * ranks
    seen = seen_of(calibration.is_cpu, compute, *exchange)
    seconds = compute + seen
    rate = share * count / seconds
    speed_up = rate * calibration.compute_seconds(1, base_batch) / base_batch
    return {
        "name": name,
        "machines": machines,
        "ranks": count,
        "batch_size": share * count,
        "per_device_batch": share,
        "seconds_per_step": seconds,
        "parts": {"compute": compute, "exchange": exchange[0], "exchange_seen": seen},
        "images_per_second": rate,
        "speed_up": speed_up,
        "efficiency": speed_up / (machines if calibration.is_cpu else count),
        "exchange_share": seen / seconds,
        "is_calibrated": machines == 1 and ranks in calibration.counts,
    }


def check(batch_size: int, counts: Sequence[int], scaling: Scaling, gpus: int = 1) -> None:
    """Refuse, before anything is measured, what cannot be reckoned for any calibration. Raises ConfigError."""
    if batch_size < 1:
        raise ConfigError({"batch_size": f"{batch_size} must be at least 1"})
    devices = [count * gpus for count in counts] or [0]
    wrong = next((count for count in devices if not 1 <= count <= MOST_DEVICES), None)
    if wrong is not None:
        raise ConfigError({"machines": f"{wrong} devices must be from 1 to {MOST_DEVICES}"})
    for count in devices:
        _share(batch_size, count, scaling)


def check_gpus(gpus: int, is_cpu: bool) -> None:
    """Raises ConfigError."""
    if is_cpu and gpus > 1:
        raise ConfigError({"gpus": f"{gpus} cannot be forecast from the calibration of a CPU: leave it at 0"})


def _share(batch_size: int, count: int, scaling: Scaling) -> int:
    if scaling == "weak":
        return batch_size
    if batch_size % count:
        text = f"{batch_size} cannot be shared equally by {count} devices: take a multiple, or weak scaling"
        raise ConfigError({"batch_size": text})
    return batch_size // count


def beside(calibration: Calibration, measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is forecast beside what a race has measured, for those rows of `race_table.rows` that have a speed.

    Keys: name, predicted and measured (seconds a step), error (predicted / measured - 1), predicted_speed_up, speed_up,
    is_calibrated, others (share of the machine that other programs took). What was predicted is None for
    nn.DataParallel, and for ranks of which no exchange was calibrated.
    """
    rows = []
    for row in measured:
        count = row["processes"] if row["parallel"] == "ddp" else 1
        if not row["seconds_per_step"] or row["is_changed"]:  # what was done to it on purpose, nobody calibrated
            continue
        guess: dict[str, Any] = {}
        if row["parallel"] != "dp":
            with suppress(ConfigError):  # no exchange was calibrated
                (guess,) = forecast(calibration, row["batch_size"], [count])
        rows.append((row, guess.get("seconds_per_step"), guess.get("is_calibrated")))
    known = [pair for pair in rows if pair[1]]
    base = next((pair for pair in known if pair[0]["parallel"] == "single"), None)
    base = base or next((pair for pair in known if pair[0]["processes"] == 1), None)
    rate = base[0]["batch_size"] / base[1] if base and base[1] else None
    return [
        {
            "name": row["name"],
            "predicted": predicted,
            "measured": row["seconds_per_step"],
            "error": predicted / row["seconds_per_step"] - 1 if predicted else None,
            "predicted_speed_up": row["batch_size"] / predicted / rate if predicted and rate else None,
            "speed_up": row["speed_up"],
            "is_calibrated": is_calibrated,
            "others": row["others"],
        }
        for row, predicted, is_calibrated in rows
    ]
