"""What a run's own records say about its speed, its answers and what it used. Imports no torch."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from trainer.config import TrainConfig
from trainer.event_reader import read_events
from trainer.events import Event
from trainer.files import open_regular
from trainer.runs import Run
from trainer.status import RunStatus

WARM_UP = 5  # steps of each process that are not counted: memory is taken and kernels are chosen in them
FEWEST = 3  # points after the warm-up; fewer say nothing
LOSSES = 256
LONGEST_GAP = 5.0  # seconds between two samples of the machine; over a longer one nothing is assumed


@dataclass(frozen=True)
class Measured:
    """The numbers of one run. None: not measured, for a reason that `status` or the kind of device gives."""

    run: str
    status: RunStatus
    error: str
    config: TrainConfig
    world_size: int
    devices: tuple[str, ...]  # names
    is_cpu: bool
    precision: str
    step: int
    images_per_second: float | None  # median over the points of the chart after the warm-up
    seconds: float  # of training, evaluations and checkpoints among them, without the time between two processes
    accuracy: float | None  # of the last evaluation, from 0 to 1
    loss: float | None
    seconds_to_target: float | None  # until the first evaluation that reached `target`
    peak_memory: dict[str, int]  # bytes by device: "GPU 0", or "CPU" for the memory of all processes of the run
    joules: float | None  # of its GPUs, where they tell their power
    others: float | None = None  # share of the machine's cores that other programs took, the median over its samples
    verdict: str = ""  # what limits it, in a sentence
    losses: tuple[tuple[int, float], ...] = ()  # (step, training loss), thinned to at most LOSSES steps

    @property
    def num_devices(self) -> int:
        """A CPU is one device, whatever number of ranks shares it."""
        return 1 if self.is_cpu else max(1, len(self.devices))


def measure(run: Run, target: float = 0.0) -> Measured:
    """Read a run, living or ended. Raises RunError or ConfigError if its settings cannot be read."""
    state, config = run.state(), run.config()
    events = [*that_stand(read_events(run.events_path))]
    start = state.start
    names = tuple(start.get("devices") or ())
    is_cpu = not any(name.startswith("GPU ") for name in names)
    seconds, to_target = _clock(events, target)
    samples = [*_samples(run)]
    return Measured(
        run=run.id,
        status=state.status,
        error=state.error,
        config=config,
        world_size=start.get("world_size", 0),
        devices=names,
        is_cpu=is_cpu,
        precision=start.get("precision", ""),
        step=state.step.get("step", 0),
        images_per_second=_rate(events),
        seconds=seconds,
        accuracy=state.evaluation.get("accuracy"),
        loss=state.evaluation.get("loss"),
        seconds_to_target=to_target,
        peak_memory=_peak_memory(samples, is_cpu),
        joules=_joules(samples),
        others=_others(samples),
        verdict=_verdict(start, events),
        losses=_losses(events),
    )


def _losses(events: list[Event]) -> tuple[tuple[int, float], ...]:
    """Thinned to multiples of one number, which is the same for runs of the same length."""
    known = {event["step"]: event["loss"] for event in events if event["kind"] == "step" and _is_point(event)}
    stride = 1
    while sum(step % stride == 0 for step in known) > LOSSES:
        stride *= 2
    return tuple((step, loss) for step, loss in known.items() if step % stride == 0)


def _is_point(event: Event) -> bool:
    return event.get("loss") is not None and event.get("step", 0) > 0


def _verdict(start: Event, events: list[Event]) -> str:
    from trainer.verdict import summarise, verdict  # loads numpy, which most commands need not wait for

    step = summarise(events)
    return verdict(start, step) if step else ""


def that_stand(events: list[Event]) -> Iterator[Event]:
    """All but the steps and evaluations that a later `start` takes back."""
    last = [float("inf")] * (len(events) + 1)
    for index in range(len(events) - 1, -1, -1):
        event = events[index]
        last[index] = min(last[index + 1], event.get("step", 0)) if event["kind"] == "start" else last[index + 1]
    for index, event in enumerate(events):
        if event["kind"] not in ("step", "eval") or event.get("step", 0) <= last[index]:
            yield event


def _rate(events: list[Event]) -> float | None:
    """Pictures a second: the median over the points of the chart whose steps lie behind the warm-up of a process."""
    rates, begun, before = [], 0, 0
    for event in events:
        if event["kind"] == "start":
            begun = before = event.get("step", 0)
        elif event["kind"] == "step":
            if before >= begun + WARM_UP and event.get("images_per_second"):
                rates.append(event["images_per_second"])
            before = event.get("step", 0)
    return median(rates) if len(rates) >= FEWEST else None


def training_clock(events: Iterable[Event]) -> Iterator[tuple[Event, float]]:
    """Each event from the first `start` on with the seconds of training up to it: those from each `start` to the last
    event of that process, added up. Events without a time are left out."""
    done, begun, newest = 0.0, None, 0.0
    for event in events:
        time = event.get("time")
        if time is None:
            continue
        if event["kind"] == "start":
            done += max(0.0, newest - begun) if begun is not None else 0.0
            begun = newest = time
        if begun is not None:
            newest = max(newest, time)
            yield event, done + newest - begun


def _clock(events: list[Event], target: float) -> tuple[float, float | None]:
    """(seconds of training, the same until `target` was reached)."""
    seconds, reached = 0.0, None
    for event, seconds in training_clock(events):
        if target and reached is None and event["kind"] == "eval" and (event.get("accuracy") or 0) >= target:
            reached = seconds
    return seconds, reached


def _samples(run: Run) -> Iterator[dict[str, Any]]:
    try:
        with open_regular(run.path / "system.jsonl") as file:
            for line in file:
                try:
                    sample = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(sample, dict) and _is_number(sample.get("time")):
                    yield sample
    except OSError:
        return


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**53  # type: ignore[operator]


def _gpus(sample: dict[str, Any]) -> list[dict[str, Any]]:
    gpus = sample.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _peak_memory(samples: list[dict[str, Any]], is_cpu: bool) -> dict[str, int]:
    peaks: dict[str, int] = {}
    for sample in samples:
        found = [("CPU", sample.get("memory"))] if is_cpu else []
        found += [] if is_cpu else [(f"GPU {gpu.get('index')}", gpu.get("memory")) for gpu in _gpus(sample)]
        for name, value in found:
            if _is_number(value):
                peaks[name] = max(peaks.get(name, 0), int(value))  # type: ignore[arg-type]
    return peaks


def _others(samples: list[dict[str, Any]]) -> float | None:
    shares = [
        max(0.0, sample["cpu"] - sample["own"]) / 100
        for sample in samples
        if _is_number(sample.get("cpu")) and _is_number(sample.get("own"))
    ]
    return median(shares) if len(shares) >= FEWEST else None


def _joules(samples: list[dict[str, Any]]) -> float | None:
    """Power times time, with the power of the later of two samples."""
    total, before = None, None
    for sample in samples:
        watts = [gpu["power"] for gpu in _gpus(sample) if _is_number(gpu.get("power"))]
        if before is not None and watts and 0 < sample["time"] - before <= LONGEST_GAP:
            total = (total or 0.0) + sum(watts) * (sample["time"] - before)
        before = sample["time"]
    return total
