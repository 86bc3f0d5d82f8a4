"""A race: the same training in several modes, one after the other through the queue, to be compared. Imports no torch.

A race is a directory beside the runs, `<time>-race-<4 hex>/`, with one file, race.json: what was asked, and the ids
of its runs. All else is read from the runs, which are ordinary ones and know nothing of it. All modes of a race begin
with the same device, so the queue runs them one after the other, also on a machine with many GPUs.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError

from trainer.config import ConfigError, TrainConfig, group
from trainer.devices import Gpu, cpu_cores, cpu_has_bf16, list_gpus
from trainer.files import open_regular, write_atomic
from trainer.flags import value_of
from trainer.measure import Measured, measure
from trainer.placement import place
from trainer.queue import cancel, locked
from trainer.race_table import Lane
from trainer.runs import MAX_CONFIG, RUN_ID, Run, RunError, RunState, RunStatus
from trainer.stop import stop_run

RACE_ID = re.compile(r"\d{8}-\d{6}-race-[0-9a-f]{4}")
MOST_RUNS = 64
POINTS = 20  # of the chart, that a race of a given number of steps has at least: one for a step of the shortest
T = TypeVar("T")
Scaling = Literal["strong", "weak"]
Look = Callable[[Run, float], Measured | None]  # (run, accuracy to reach)
AGAIN = (RunStatus.STOPPED, RunStatus.INTERRUPTED, RunStatus.FAILED)  # what a race that is resumed tries again
_MODE = re.compile(r"(single|dp|ddp)(?:[:x ]+(\d{1,3}))?((?:,[^,=]+=[^,=]*)*)")


@dataclass(frozen=True)
class Entrant:
    """A mode and over how many devices it goes; on the CPU, ranks. `changes` are settings in which it differs from the
    race's own: a lesson, as it is beside as it would be."""

    parallel: str
    processes: int
    changes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, word: str) -> "Entrant":
        """`single`, `dp:2`, `ddp:4`, `ddp:2,slow_ms=30`. Raises ConfigError."""
        found = _MODE.fullmatch(word.strip())
        count = int(found[2] or (1 if found[1] == "single" else 2)) if found else 0
        if not found or count < 1 or (found[1] == "single" and count > 1):
            raise ConfigError({"modes": f"{word[:40]!r} is none: give single, dp:2, ddp:1, ddp:2 and the like"})
        return cls(found[1], count, tuple(_change(part) for part in found[3].split(",")[1:]))

    @property
    def word(self) -> str:
        """As `parse` takes it."""
        mode = self.parallel if self.parallel == "single" else f"{self.parallel}:{self.processes}"
        return ",".join([mode, *(f"{field}={value}" for field, value in self.changes)])

    @property
    def name(self) -> str:
        """As people read it."""
        mode = self.parallel if self.parallel == "single" else f"{self.parallel} x{self.processes}"
        changes = ", ".join(f"{field} {value}" for field, value in self.changes)
        return f"{mode} ({changes})" if changes else mode


def _change(text: str) -> tuple[str, Any]:
    """`slow_ms=30` -> ("slow_ms", 30). Raises ConfigError."""
    field, _, word = text.partition("=")
    field = field.strip()
    if field in ("parallel", "processes", "devices", "label") or field not in TrainConfig.model_fields:
        raise ConfigError({"modes": f"{field[:40]!r} is no setting that a mode can have of its own"})
    return field, value_of(field, word.strip())


def usual_entrants(gpus: Sequence[Gpu]) -> list[Entrant]:
    """What is raced if nobody says otherwise: single, and both ways over 2, 4, 8 ... and all GPUs; on a CPU ddp x2."""
    counts = [count for count in (2, 4, 8, 16) if count < len(gpus)] + ([len(gpus)] if len(gpus) > 1 else [])
    many = [Entrant(parallel, count) for count in counts for parallel in ("dp", "ddp")]
    return [Entrant("single", 1), *(many or [Entrant("ddp", 1 if gpus else 2)])]


def entrant_config(base: TrainConfig, entrant: Entrant, scaling: Scaling, gpus: Sequence[Gpu]) -> TrainConfig:
    """The settings with which a mode races. Strong scaling keeps all but the mode; weak scaling keeps the batch of each
    device, and multiplies batch and learning rate by their number (the linear rule of arXiv:1706.02677).

    Raises ConfigError if this machine cannot run it, or it would be another mode in disguise.
    """
    base = base.changed(**dict(entrant.changes))
    count = entrant.processes
    pool = [] if base.devices == "cpu" else [gpu.index for gpu in gpus]
    if base.devices not in ("cpu", "auto"):
        pool = [int(number) for number in base.devices.split(",")]
    if entrant.parallel == "dp" and (count < 2 or len(pool) < 2):
        raise ConfigError({"modes": "needs two GPUs or more: with fewer it trains as one device"})
    if pool and count > len(pool):
        raise ConfigError({"modes": f"needs {count} GPUs, and there are {len(pool)}"})
    factor = count if scaling == "weak" else 1
    points = base.max_steps // POINTS  # a short race has points enough for a median, too
    config = base.changed(
        parallel=entrant.parallel,
        processes=count if entrant.parallel == "ddp" else 0,
        devices=",".join(map(str, pool[:count])) or "cpu",
        batch_size=base.batch_size * factor,
        lr=base.lr * factor,
        log_every=max(1, min(base.log_every, points)) if base.max_steps else base.log_every,
    )
    place(config, gpus, cpu_cores(), cpu_has_bf16())
    return config


class PlannedLane(BaseModel):
    """One mode of a race, and its runs: the one of each repeat; `refusal` is why this machine cannot run it."""

    parallel: Literal["single", "dp", "ddp"]
    processes: int = Field(ge=1)
    changes: dict[str, int | float | bool | str] = {}
    refusal: str
    runs: list[Annotated[str, Field(pattern=f"^{RUN_ID.pattern}$")]]

    @property
    def entrant(self) -> Entrant:
        return Entrant(self.parallel, self.processes, tuple(self.changes.items()))


class Plan(BaseModel):
    """What was asked of a race: the content of race.json."""

    v: Literal[1] = 1
    made: float  # Unix seconds
    scaling: Scaling
    repeats: int = Field(ge=1, le=MOST_RUNS)
    config: dict[str, Any]  # the settings, as another version of the program may have written them
    lanes: list[PlannedLane]

    @property
    def target(self) -> float:
        """The accuracy until which it goes, from 0 to 1; 0: until the end."""
        value = self.config.get("target_accuracy")
        return float(value) if isinstance(value, int | float) else 0.0


@dataclass(frozen=True)
class Race:
    """A handle on one race; holds no state of its own."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def runs_dir(self) -> Path:
        return self.path.parent

    def plan(self) -> Plan:
        """Raises RunError."""
        try:
            with open_regular(self.path / "race.json") as file:
                return Plan.model_validate_json(file.read(MAX_CONFIG))
        except (OSError, ValidationError) as error:
            raise RunError(f"{self.path} is not a race: its race.json cannot be read") from error

    def runs(self) -> list[Run]:
        """Its runs in the order in which they were queued; those that were deleted are left out."""
        plan = self.plan()
        found = []
        for repeat in range(plan.repeats):
            for lane in _in_order(plan.lanes, repeat):
                found += [Run(self.runs_dir / name) for name in lane.runs[repeat : repeat + 1]]
        return [run for run in found if run.is_there]

    def lanes(self, look: Look | None = None) -> list[Lane]:
        """Its modes with what was measured so far, run by run by `look`, which may remember; None: read anew."""
        plan = self.plan()
        look = look or look_anew
        return [
            Lane(
                lane.entrant.name,
                lane.parallel,
                lane.processes,
                [look(Run(self.runs_dir / name), plan.target) for name in lane.runs],
                lane.refusal,
                bool(lane.changes),
            )
            for lane in plan.lanes
        ]

    @property
    def is_on(self) -> bool:
        """Whether any of its runs is at work or waits for its turn."""
        return any(state.status.living or state.status == RunStatus.QUEUED for state in self.states())

    def states(self) -> list[RunState]:
        """How its runs stand, in their order."""
        return [run.state() for run in self.runs()]

    def stop(self, stop_one: Callable[[Run], Any] = stop_run) -> None:
        """Take what waits out of the queue and stop what is at work by `stop_one`. Raises what that raises."""
        for run in reversed(self.runs()):  # the last first, so that none of them gets its turn meanwhile
            cancel(run)
        for state in self.states():
            if state.status.living:
                stop_one(state.run)

    def resume(self) -> int:
        """Queue again what was stopped, cut short or failed, each from its last checkpoint. Returns how many."""
        count = 0
        for run in self.runs():
            with locked(self.runs_dir), suppress(ConfigError):  # there is nothing left to do
                if run.state().status in AGAIN:
                    run.prepare_resume()
                    count += 1
        return count


def create_race(
    runs_dir: Path, base: TrainConfig, entrants: Sequence[Entrant], scaling: Scaling = "strong", repeats: int = 1
) -> Race:
    """Queue a race. Every other repeat goes in reverse order, so that a machine that warms up favours nobody.

    A mode that this machine cannot run is kept, with the reason. Raises ConfigError if none can run or the race is too
    large, RunError if the directory cannot be written.
    """
    _check(base, entrants, scaling, repeats)
    gpus = list_gpus()
    lanes: list[PlannedLane] = []
    configs: list[TrainConfig | None] = []
    for entrant in entrants:
        refusal = ""
        try:
            configs.append(entrant_config(base, entrant, scaling, gpus))
        except ConfigError as error:
            configs.append(None)
            refusal = "; ".join(error.errors.values())
        asked = {"parallel": entrant.parallel, "processes": entrant.processes, "changes": dict(entrant.changes)}
        lanes.append(PlannedLane.model_validate({**asked, "refusal": refusal, "runs": []}))
    if not any(configs):
        raise ConfigError({"modes": f"none of them can run here: {entrants[0].name} {lanes[0].refusal}"})
    race = _make_directory(runs_dir)
    settings = base.anchored().model_dump()
    plan = Plan(made=time.time(), scaling=scaling, repeats=repeats, config=settings, lanes=lanes)
    for repeat in range(repeats):
        for config, lane, entrant in _in_order([*zip(configs, lanes, entrants, strict=True)], repeat):
            if config is None:
                continue
            turn = f", {repeat + 1} of {repeats}" if repeats > 1 else ""
            label = f"{entrant.name}{turn}, {base.label or f'race {race.id[9:15]}'}"
            lane.runs.append(Run.create(runs_dir, config.changed(label=label[:64])).id)
            _write(race, plan)  # what was queued is known to be of this race, however far this gets
    return race


def _check(base: TrainConfig, entrants: Sequence[Entrant], scaling: str, repeats: int) -> None:
    errors = {}
    if 0 < base.max_steps < POINTS:
        errors["max_steps"] = f"{base.max_steps} is too short for a race: give at least {POINTS}, or 0 for no limit"
    if len(set(entrants)) < len(entrants) or not entrants:
        errors["modes"] = "one of them is named twice: repeats are for that" if entrants else "are missing: name one"
    if scaling not in get_args(Scaling):
        errors["scaling"] = f"{scaling!r} must be strong or weak"
    if not 1 <= repeats <= MOST_RUNS:
        errors["repeats"] = f"{repeats} must be from 1 to {MOST_RUNS}"
    elif len(entrants) * repeats > MOST_RUNS:
        errors["repeats"] = f"{repeats} times {len(entrants)} modes are more than {MOST_RUNS} runs"
    if errors:
        raise ConfigError(errors)


def _make_directory(runs_dir: Path) -> Race:
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        while True:
            now = time.time()
            stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
            race = Race(runs_dir / f"{stamp}-race-{int(now % 1 * 0x10000):04x}")
            try:
                race.path.mkdir()
            except FileExistsError:  # somebody makes one at this very moment
                continue
            return race
    except OSError as error:
        raise RunError(f"the race in {runs_dir} cannot be written: {error}") from error


def _write(race: Race, plan: Plan) -> None:
    try:
        write_atomic(race.path / "race.json", plan.model_dump_json(indent=1))
    except OSError as error:
        raise RunError(f"{race.path} cannot be written: {error.strerror}") from error


def _in_order(lanes: list[T], repeat: int) -> list[T]:
    return lanes[::-1] if repeat % 2 else lanes


def side_by_side(found: Sequence[Measured]) -> list[Lane]:
    """Any runs as lanes: those of one mode and number of devices count as repeats."""
    lanes: dict[Entrant, list[Measured | None]] = {}
    for one in found:
        count = max(1, one.world_size) if one.config.parallel == "ddp" else one.num_devices
        lanes.setdefault(Entrant(one.config.parallel, count, lessons_of(one.config)), []).append(one)
    return [
        Lane(entrant.name, entrant.parallel, entrant.processes, runs, is_changed=bool(entrant.changes))
        for entrant, runs in lanes.items()
    ]


def lessons_of(config: TrainConfig) -> tuple[tuple[str, Any], ...]:
    """What was slowed down on purpose: no repeat of a run in which nothing was."""
    values = {field: getattr(config, field) for field in TrainConfig.model_fields if group(field) == "lesson"}
    return tuple((field, value) for field, value in values.items() if value)


def look_anew(run: Run, target: float) -> Measured | None:
    """What a run has measured; None if it was deleted or cannot be read."""
    try:
        return measure(run, target) if run.is_there else None
    except ValueError:
        return None


def iter_races(runs_dir: Path) -> Iterator[Race]:
    """All races of a directory, newest first."""
    with suppress(OSError):
        for name in sorted(filter(RACE_ID.fullmatch, os.listdir(runs_dir)), reverse=True):
            if os.path.exists(runs_dir / name / "race.json"):
                yield Race(runs_dir / name)


def open_race(runs_dir: Path, reference: str) -> Race:
    """The race that an id, a path or `latest` names. Raises RunError."""
    if reference == "latest":
        newest = next(iter_races(runs_dir), None)
        if newest is None:
            raise RunError(f"there is no race in {runs_dir} yet")
        return newest
    path = runs_dir / reference if RACE_ID.fullmatch(reference) else Path(os.path.abspath(reference))
    if not reference or not os.path.isfile(path / "race.json"):
        raise RunError(f"there is no race {reference!r} in {runs_dir}")
    return Race(path)
