"""Do the modes learn the same? Their losses step by step, beside what chance alone changes. Imports no torch."""

from collections.abc import Sequence
from statistics import mean

from trainer.config import TrainConfig
from trainer.measure import Measured
from trainer.race_table import Lane, baseline

MODE = {"parallel", "processes", "devices", "label", "anatomy"}  # what may differ at the same training
FEWEST = 5  # steps in common; fewer say nothing
LIKE_CHANCE = 1.0  # times the difference that another seed makes, up to which the modes count as learning the same


def difference(one: Measured, other: Measured) -> float | None:
    """The mean difference of their training losses, without its sign, over the steps that both have logged."""
    ours, theirs = dict(one.losses), dict(other.losses)
    common = [abs(ours[step] - theirs[step]) for step in ours.keys() & theirs.keys()]
    return mean(common) if len(common) >= FEWEST else None


def same_answer(lanes: Sequence[Lane]) -> list[str]:
    """A sentence for each mode that trained as the one of one device did, but for the mode; [] without such modes."""
    base = baseline(lanes)
    runs = {lane.name: next((run for run in lane.runs if run and run.losses), None) for lane in lanes}
    first = runs[base.name] if base else None
    if base is None or first is None:
        return []
    chances = [difference(first, run) for run in runs.values() if run and _differ(first.config, run.config) == {"seed"}]
    chance = max((value for value in chances if value is not None), default=None)
    said = []
    for lane in lanes:
        run = runs[lane.name]
        if lane is base or run is None or _differ(first.config, run.config):
            continue
        apart = difference(first, run)
        if apart is not None:
            said.append(_sentence(lane.name, base.name, apart, chance))
    return said


def _differ(one: TrainConfig, other: TrainConfig) -> set[str]:
    """The settings, beside the mode, in which they differ."""
    fields = TrainConfig.model_fields.keys() - MODE
    return {field for field in fields if getattr(one, field) != getattr(other, field)}


def _sentence(name: str, base: str, apart: float, chance: float | None) -> str:
    words = f"{name} and {base}: at the same step their training losses are {_loss(apart)} apart on average"
    if chance is None:
        return f"{words}. How much chance alone changes, a race with another seed shows."
    if apart <= LIKE_CHANCE * chance:
        return f"{words}, another seed changes them by {_loss(chance)}: the same answer."
    return (
        f"{words}, another seed changes them by {_loss(chance)}: more than chance. "
        "Networks with BatchNorm see each device's share of the batch."
    )


def _loss(value: float) -> str:
    return f"{value:.2g}" if value else "0"
