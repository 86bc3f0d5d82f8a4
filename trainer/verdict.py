"""What limits a run, in one sentence made of the run's own numbers. Imports no torch.

Every number in it follows from the `start` and `anatomy` events alone. Shares are means over the ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.anatomy import PARTS, slowest
from trainer.events import Event

WORTH_A_WORD = 0.10  # share of a step from which something besides computing counts as what limits the run
COPIES = ("scatter", "replicate", "gather")
MEGABYTE = 1e6


@dataclass(frozen=True)
class Summary:
    """The mean step of a run."""

    ranks: Sequence[dict[str, float]]  # seconds of each part in a step, by rank
    steps: int  # how many were counted

    @property
    def seconds(self) -> float:
        """Of a step: the mean over the ranks of all their parts."""
        return sum(rank.get(name, 0.0) for rank in self.ranks for name in PARTS) / len(self.ranks)

    def of(self, *names: str) -> float:
        """Seconds of these parts in a step, the mean over the ranks."""
        return sum(rank.get(name, 0.0) for rank in self.ranks for name in names) / len(self.ranks)

    def share(self, *names: str) -> float:
        """... as a share of the step, from 0 to 1."""
        return self.of(*names) / self.seconds if self.seconds else 0.0


def summarise(events: Iterable[Event]) -> Summary | None:
    """The mean over all `anatomy` events of the newest process, weighted by their steps; None if there is none.

    The first one is left out if others follow: it counts the steps in which the process warmed up.
    """
    found: list[Event] = []
    for event in events:
        if event["kind"] == "start":
            found = []
        elif event["kind"] == "anatomy" and event.get("ranks") and event.get("steps", 0) > 0:
            found.append(event)
    return mean_step(found)


def mean_step(found: Sequence[Event]) -> Summary | None:
    """The same for the `anatomy` events of one process."""
    found = found[1:] or found
    if not found:
        return None
    found = [event for event in found if len(event["ranks"]) == len(found[-1]["ranks"])]
    steps = sum(event["steps"] for event in found)
    ranks = [
        {
            name: sum(event["ranks"][rank].get(name, 0.0) * event["steps"] for event in found) / steps
            for name in (*PARTS, "hidden")
        }
        for rank in range(len(found[-1]["ranks"]))
    ]
    return Summary(ranks, steps)


def verdict(start: Event, step: Summary) -> str:
    """What takes the most of a step besides computing; computing itself if nothing else is worth a word."""
    late = slowest(step.ranks)
    held_up = late[1] / step.seconds if late else 0.0
    candidates = {
        _waiting: held_up,
        _exchange: step.share("exchange", "waiting") - held_up * (len(step.ranks) - 1) / len(step.ranks),
        _copies: step.share(*COPIES),
        _data: step.share("data"),
        _optimizer: step.share("optimizer"),
        _other: step.share("other"),
    }
    sentence, share = max(candidates.items(), key=lambda item: item[1])
    return sentence(start, step) if share >= WORTH_A_WORD else _computing(start, step)


def _waiting(start: Event, step: Summary) -> str:
    late = slowest(step.ranks)
    assert late is not None
    rank, seconds = late
    return (
        f"Rank {rank} holds the others up: they wait {_ms(seconds)} longer than it in each step, "
        f"{_percent(seconds / step.seconds)} of the step."
    )


def _exchange(start: Event, step: Summary) -> str:
    exchange = step.of("exchange", "waiting")
    words = (
        f"{_percent(exchange / step.seconds)} of a step is gradient exchange, waiting for it included ({_ms(exchange)})"
    )
    size, layer = start.get("gradient_bytes", 0), start.get("largest_layer_bytes", 0)
    if size and layer:
        words += (
            f": {size / MEGABYTE:.3g} MB a step, {_percent(layer / size)} of it "
            f"the layer {start.get('largest_layer', '')}"
        )
    hidden = step.of("hidden")
    if hidden >= 0.01 * step.seconds:
        words += f"; another {_ms(hidden)} hide behind backward"
    return f"{words}. {_break_even(start, step)}"


def _break_even(start: Event, step: Summary) -> str:
    """Computing is taken to grow with the batch, exchange not to: T(one device) = ranks x computing."""
    ranks, exchange = len(step.ranks), step.of("exchange", "waiting")
    computing = step.seconds - exchange
    if start.get("backend") == "gloo":
        return "The ranks share one CPU: a larger batch shrinks that share, but adds no cores."
    speed_up = ranks * computing / step.seconds
    if speed_up > 1:
        at_twice = 2 * ranks * computing / (2 * computing + exchange)
        return (
            f"By these numbers {ranks} devices are {speed_up:.1f} times as fast as one, "
            f"and {at_twice:.1f} times at twice the batch."
        )
    factor = exchange / ((ranks - 1) * max(computing, 1e-9))
    return (
        f"By these numbers one device is faster; from {factor:.1f} times the batch a device on, {ranks} would catch up."
    )


def _copies(start: Event, step: Summary) -> str:
    parts = ", ".join(f"{name} {_ms(step.of(name))}" for name in COPIES)
    return (
        f"{_percent(step.share(*COPIES))} of a step is nn.DataParallel's copying between the GPUs ({parts}): "
        "ddp keeps the weights on each GPU and exchanges gradients only."
    )


def _data(start: Event, step: Summary) -> str:
    return (
        f"{_percent(step.share('data'))} of a step is waiting for its pictures ({_ms(step.of('data'))}): "
        "cutting them out of the table, shifting and mirroring."
    )


def _optimizer(start: Event, step: Summary) -> str:
    fixed = step.of("optimizer")
    at_twice = fixed / (
        fixed + step.of("exchange", "waiting") + 2 * (step.seconds - fixed - step.of("exchange", "waiting"))
    )
    return (
        f"{_percent(step.share('optimizer'))} of a step is the optimizer ({_ms(fixed)}): it updates "
        f"{start.get('parameters', 0) / 1e6:.3g} million weights whatever the batch. "
        f"At twice the batch it would be {_percent(at_twice)}."
    )


def _other(start: Event, step: Summary) -> str:
    return (
        f"{_percent(step.share('other'))} of a step is bookkeeping, most of it points of the chart "
        f"({_ms(step.of('other'))}): log less often."
    )


def _computing(start: Event, step: Summary) -> str:
    rest = [("data", "pictures"), ("optimizer", "optimizer")]
    rest += [("exchange", "exchange")] if len(step.ranks) > 1 else []
    shares = {"exchange": step.share("exchange", "waiting")}
    others = ", ".join(f"{words} {_percent(shares.get(name, step.share(name)))}" for name, words in rest)
    forward, backward = step.share("forward"), step.share("backward")
    return (
        f"{_percent(forward + backward)} of a step is computing (forward {_percent(forward)}, backward "
        f"{_percent(backward)}): the network's arithmetic is the limit, the rest is small ({others})."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
