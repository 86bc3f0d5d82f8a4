"""What a race tells beyond its table: whether the modes learn the same, and how far off a forecast was. No torch."""

from collections.abc import Sequence
from typing import Any

from trainer.calibration import Calibration, find
from trainer.devices import cpu_cores, cpu_name
from trainer.forecast import beside
from trainer.forecast_words import verdict
from trainer.race import Race
from trainer.race_table import Lane
from trainer.same_answer import same_answer


def findings(lanes: Sequence[Lane], found: Sequence[dict[str, Any]], race: Race | None) -> list[str]:
    """Sentences about `lanes`, whose rows are `found`. Without a race there is no forecast."""
    calibration = kept_for(race, found) if race else None
    rows = beside(calibration, found) if calibration else []
    return [*same_answer(lanes), *([verdict(rows, calibration)] if calibration and rows else [])]


def kept_for(race: Race, measured: Sequence[dict[str, Any]]) -> Calibration | None:
    """The calibration that was kept for the network of a race on this machine, if it has all numbers of ranks in it."""
    known = [row for row in measured if row["seconds_per_step"] and row["parallel"] != "dp"]
    if not known:
        return None
    config = race.plan().config
    device = cpu_name() if known[0]["is_cpu"] else known[0]["devices"].split(", ")[0].split(" ", 2)[-1]
    model, optimizer = str(config.get("model")), str(config.get("optimizer"))
    made = find(model, optimizer, known[0]["precision"], device, cpu_cores())
    return made if made and {row["processes"] for row in known} <= made.counts else None
