"""`python -m trainer forecast`: calibrate for some seconds, then reckon how it would scale. Imports no torch."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from pydantic import ValidationError

from trainer.calibration import Calibration, CalibrationError, keep, read
from trainer.config import ConfigError, TrainConfig, config_error
from trainer.devices import Gpu, cpu_cores, cpu_has_bf16, list_gpus
from trainer.findings import kept_for
from trainer.flags import flags, settings
from trainer.forecast import Network, Scaling, beside, check, check_gpus, cluster, forecast
from trainer.forecast_words import AGAINST_COLUMNS, COLUMNS, against_cells, assumptions, cells, verdict
from trainer.log import STDERR, printable, say
from trainer.placement import Placement, place
from trainer.presets import PRESETS
from trainer.race import Entrant, entrant_config, open_race
from trainer.race_table import rows as race_rows
from trainer.signals import StopOnSignal

FEWEST_ON_CPU = 4  # ranks that are calibrated on any CPU if they are asked for; more only up to two a core


def forecast_command(preset_name: str) -> Callable[..., int]:
    """The command, with the flags of the preset's settings."""
    preset_flag = Literal[tuple(PRESETS)]  # type: ignore[valid-type]
    base = PRESETS[preset_name]
    main_flags, optimisation_flags = flags("main", base), flags("optimisation", base)
    more_flags, lesson_flags = flags("run", base), flags("lesson", base)

    def forecast_(
        modes: Annotated[
            tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODE...", help="as in: single ddp:2 ddp:8")
        ] = (),
        preset: Annotated[preset_flag, tyro.conf.arg(help="where the settings start from")] = preset_name,  # type: ignore[valid-type]
        scaling: Annotated[
            Scaling, tyro.conf.arg(help="strong: one batch over all devices; weak: the batch grows with their number")
        ] = "strong",
        machines: Annotated[int, tyro.conf.arg(help="reckon for up to so many machines over a network")] = 1,
        gpus: Annotated[int, tyro.conf.arg(help="devices of each machine; 0: as many as this one has")] = 0,
        network_gbit: Annotated[float, tyro.conf.arg(help="Gbit/s of each machine")] = 100.0,
        network_latency_us: Annotated[float, tyro.conf.arg(help="microseconds for one message")] = 5.0,
        calibration: Annotated[
            str, tyro.conf.arg(metavar="FILE", help="take this calibration, as of another machine; measure nothing")
        ] = "",
        against: Annotated[
            str, tyro.conf.arg(metavar="RACE", help="set the forecast beside what this race, or `latest`, has measured")
        ] = "",
        runs_dir: Annotated[Path, tyro.conf.arg(help="where the run directories are")] = Path("runs"),
        json_: Annotated[bool, tyro.conf.arg(name="json", help="print one JSON document and nothing else")] = False,
        main: tyro.conf.OmitArgPrefixes[Any] = main_flags,
        optimisation: tyro.conf.OmitArgPrefixes[Any] = optimisation_flags,
        more: tyro.conf.OmitArgPrefixes[Any] = more_flags,
        lessons: tyro.conf.OmitArgPrefixes[Any] = lesson_flags,
    ) -> int:
        """Forecast speed-ups from measurements of some seconds, and check the forecast against a race."""
        config = settings(main, optimisation, more, lessons)
        network = _network(network_gbit, network_latency_us)
        if against and (modes or machines != 1):
            raise ConfigError({"against": "the race says which modes: give neither modes nor --machines beside it"})
        given = read(Path(calibration)) if calibration else None
        if against:
            return _against(runs_dir, against, given, json_)
        entrants = _entrants(modes, config)
        counts = [entrant.processes for entrant in entrants]
        if machines == 1:
            check(config.batch_size, counts, scaling)
            made = given or _measure(config, counts, scaling)
            rows = forecast(made, config.batch_size, counts, scaling)
        else:
            width, steps = _width(gpus, given, config), [*_powers(machines), machines]
            check(config.batch_size, steps, scaling, width)
            made = given or _measure(config, [width], scaling, is_alone=False)
            rows = cluster(made, config.batch_size, steps, width, network, scaling)
        words = assumptions(made, rows, scaling, network if machines > 1 else None)
        if json_:
            print(json.dumps({"rows": rows, "assumptions": words, "calibration": made.model_dump()}))
            return 0
        _print_table(COLUMNS, [cells(row) for row in rows])
        print("\n".join(printable(text) for text in words))
        return 0

    return forecast_


def _network(gbit: float, latency_us: float) -> Network:
    try:
        return Network(gbit=gbit, latency_us=latency_us)
    except ValidationError as error:
        errors = config_error(error).errors
        raise ConfigError({f"network_{field}": text for field, text in errors.items()}) from None


def _entrants(modes: Sequence[str], config: TrainConfig) -> list[Entrant]:
    """Those that are named, else one rank and powers of two: up to all GPUs, on a CPU up to 4. Raises ConfigError."""
    entrants = [Entrant.parse(word) for word in modes]
    if any(entrant.parallel == "dp" for entrant in entrants):
        raise ConfigError({"modes": "nn.DataParallel is not forecast: give single and ddp:2, ddp:4 and the like"})
    most = len(_gpus(config)) or FEWEST_ON_CPU
    usual = dict.fromkeys([*_powers(most), most])
    return entrants or [Entrant("ddp" if count > 1 else "single", count) for count in usual]


def _powers(most: int) -> list[int]:
    """Of two, below `most`."""
    return [2**power for power in range(max(0, most).bit_length()) if 2**power < most]


def _gpus(config: TrainConfig) -> list[Gpu]:
    if config.devices in ("cpu", "auto"):
        return [] if config.devices == "cpu" else list_gpus()
    return [gpu for gpu in list_gpus() if str(gpu.index) in config.devices.split(",")]


def _width(gpus: int, given: Calibration | None, config: TrainConfig) -> int:
    """Devices of each machine; 0: as many as there are where the calibration is from. Raises ConfigError."""
    if gpus < 0:
        raise ConfigError({"gpus": f"{gpus} must be at least 0"})
    is_cpu = given.is_cpu if given else not _gpus(config)
    check_gpus(gpus, is_cpu)
    if gpus or is_cpu:
        return gpus or 1
    return max(given.counts) if given else len(_gpus(config))


def _measure(config: TrainConfig, counts: Sequence[int], scaling: Scaling, is_alone: bool = True) -> Calibration:
    """Calibrate one rank and those numbers of ranks that this machine can hold.

    is_alone: only this machine is of interest: no network stands in for what joins its devices, and what comes out is
    kept, with all the numbers of ranks that a race of it may have.
    """
    gpus = _gpus(config)
    if is_alone and len(gpus) == 1 and max(counts) > 1:
        raise ConfigError({"modes": f"ddp:{max(counts)} cannot be forecast: one GPU has no other to exchange with"})
    most = len(gpus) or max(FEWEST_ON_CPU, 2 * cpu_cores())
    placements: list[tuple[Placement, int]] = []
    for count in sorted({1, *(count for count in counts if count <= most)}):
        chosen = entrant_config(config, Entrant("ddp" if count > 1 else "single", count), scaling, gpus)
        placement = place(chosen, gpus, cpu_cores(), cpu_has_bf16())
        placements.append((placement, placement.per_device_batch))
    for number in StopOnSignal.NUMBERS:  # also where a parent has it ignored
        signal.signal(number, signal.default_int_handler)
    from trainer.calibrate import calibrate

    try:
        made = calibrate(config, placements, lambda text: say(text, STDERR))
    except KeyboardInterrupt:
        raise CalibrationError("the calibration was stopped: nothing was kept") from None
    kept = f"; kept as {keep(made)}" if is_alone else ""
    say(f"calibrated in {made.took:.0f} s{kept}", STDERR)
    return made


def _against(runs_dir: Path, reference: str, given: Calibration | None, as_json: bool) -> int:
    """The forecast beside a race, from the calibration that is kept for its network, or from a new one."""
    race = open_race(runs_dir, reference)
    measured = race_rows(race.lanes())
    if not any(row["seconds_per_step"] for row in measured):
        raise ConfigError({"against": f"{race.id} has measured nothing yet"})
    made = given or kept_for(race, measured)
    if made is None:
        config = TrainConfig.parse(race.plan().config)
        counts = {row["processes"] for row in measured if row["parallel"] == "ddp" and row["seconds_per_step"]}
        made = _measure(config, sorted(counts) or [1], race.plan().scaling)
    rows = beside(made, measured)
    if as_json:
        print(json.dumps({"rows": rows, "race": race.id, "calibration": made.model_dump()}))
        return 0
    _print_table(AGAINST_COLUMNS, [against_cells(row) for row in rows])
    print(printable(verdict(rows, made)))
    return 0


def _print_table(titles: Sequence[str], table: Sequence[Sequence[str]]) -> None:
    lines = [titles, *table]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    for line in lines:
        words = (word.ljust(width) for word, width in zip(line, widths, strict=True))
        print(printable("  ".join(words).rstrip()))
