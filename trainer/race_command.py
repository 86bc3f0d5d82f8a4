"""`python -m trainer race`: queue a race, wait for it, print its table. Imports no torch."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from trainer.background import start_waiting
from trainer.config import ConfigError
from trainer.devices import list_gpus
from trainer.findings import findings, kept_for
from trainer.flags import flags, settings
from trainer.forecast import beside
from trainer.log import STDERR, printable, say
from trainer.measure import measure
from trainer.presets import PRESETS
from trainer.queue import POLL
from trainer.race import Entrant, Race, Scaling, create_race, open_race, side_by_side, usual_entrants
from trainer.race_table import Lane, headline, rows, with_range
from trainer.run_list import open_run
from trainer.runs import RunError, RunStatus
from trainer.signals import StopOnSignal

COLUMNS = ("mode", "devices", "images/s", "ms a step", "speed-up", "efficiency", "peak memory", "accuracy", "status")


def race_command(preset_name: str) -> Callable[..., int]:
    """The command, with the flags of the preset's settings."""
    preset_flag = Literal[tuple(PRESETS)]  # type: ignore[valid-type]
    base = PRESETS[preset_name]
    main_flags, optimisation_flags = flags("main", base), flags("optimisation", base)
    more_flags, lesson_flags = flags("run", base), flags("lesson", base)

    def race(
        modes: Annotated[
            tuple[str, ...],
            tyro.conf.Positional,
            tyro.conf.arg(metavar="MODE...", help="as in: single ddp:2 ddp:2,slow_ms=30"),
        ] = (),
        preset: Annotated[preset_flag, tyro.conf.arg(help="where the settings start from")] = preset_name,  # type: ignore[valid-type]
        scaling: Annotated[
            Scaling,
            tyro.conf.arg(
                help="strong: one batch over all devices; weak: batch and learning rate grow with their number"
            ),
        ] = "strong",
        repeats: Annotated[
            int, tyro.conf.arg(help="run each mode so many times, every other time in reverse order")
        ] = 1,
        show: Annotated[
            str, tyro.conf.arg(metavar="RACE", help="only print the table of this race, or of `latest`")
        ] = "",
        resume: Annotated[str, tyro.conf.arg(metavar="RACE", help="go on with what is left of this race")] = "",
        of: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN...", help="only compare these runs")] = (),
        runs_dir: Annotated[Path, tyro.conf.arg(help="where the run directories are")] = Path("runs"),
        json_: Annotated[bool, tyro.conf.arg(name="json", help="print one JSON document and nothing else")] = False,
        main: tyro.conf.OmitArgPrefixes[Any] = main_flags,
        optimisation: tyro.conf.OmitArgPrefixes[Any] = optimisation_flags,
        more: tyro.conf.OmitArgPrefixes[Any] = more_flags,
        lessons: tyro.conf.OmitArgPrefixes[Any] = lesson_flags,
    ) -> int:
        """Train the same in several modes, one after the other, and compare their speed."""
        config = settings(main, optimisation, more, lessons)
        if sum(map(bool, (show, resume, of, modes))) > 1:
            raise ConfigError({"race": "give either modes, or one of --show, --resume and --of"})
        if of:
            found = [measure(open_run(runs_dir, name)) for name in dict.fromkeys(of)]
            return _print(side_by_side(found), None, json_)
        if show:
            opened = open_race(runs_dir, show)
            return _print(opened.lanes(), opened, json_)
        if resume:
            opened = open_race(runs_dir, resume)
            opened.resume()
        else:
            entrants = [Entrant.parse(word) for word in modes] or usual_entrants(list_gpus())
            opened = create_race(runs_dir, config, entrants, scaling, repeats)
        if not json_:
            print(opened.path, flush=True)
        for number in StopOnSignal.NUMBERS:  # also where a parent has it ignored
            signal.signal(number, signal.default_int_handler)
        try:
            _wait(opened)
        except KeyboardInterrupt:
            say(f"stopping the race; go on with it by: race --resume {opened.id}", STDERR)
            opened.stop()
        return _print(opened.lanes(), opened, json_)

    return race


def _wait(race: Race) -> None:
    """Until nothing of the race is queued or at work; says how each run ended."""
    told: set[str] = set()
    while True:
        with suppress(RunError):  # a full disk: the next look may find room
            start_waiting(race.runs_dir)
        states = race.states()
        for state in states:
            if state.run.id not in told and not state.status.living and state.status != RunStatus.QUEUED:
                told.add(state.run.id)
                say(f"{state.run.id}: {state.status}{f': {state.error}' if state.error else ''}", STDERR)
        if len(told) >= len(states):
            return
        time.sleep(POLL)


def _print(lanes: Sequence[Lane], race: Race | None, as_json: bool) -> int:
    found = rows(lanes)
    calibration = kept_for(race, found) if race else None
    if as_json:
        print(
            json.dumps(
                {
                    "rows": found,
                    "race": race.id if race else None,
                    "report": None,
                    "forecast": beside(calibration, found) if calibration else None,
                }
            )
        )
    else:
        _print_table([dict(zip(COLUMNS, _cells(row), strict=True)) for row in found])
        for row in found:
            if row["reason"] or row["verdict"]:
                print(printable(f"{row['name']}: {row['reason'] or row['verdict']}"))
        for sentence in findings(lanes, found, race):
            print(printable(sentence))
        print(headline(found) or "nothing was measured: a race needs some steps after its warm-up")
    return 0 if any(row["images_per_second"] for row in found) else 1


def _cells(row: dict[str, Any]) -> list[str]:
    memory = " + ".join(f"{peak / 1e9:.2f} GB" for peak in row["peak_memory"].values())
    return [
        row["name"],
        row["devices"] or "-",
        with_range(row, "images_per_second", "{:,.0f}"),
        with_range(row, "seconds_per_step", "{:.1f}", 1000),
        with_range(row, "speed_up", "{:.2f}"),
        with_range(row, "efficiency", "{:.0%}"),
        memory or "-",
        with_range(row, "accuracy", "{:.2%}"),
        row["status"],
    ]


def _print_table(table: Sequence[dict[str, str]]) -> None:
    widths = {key: max(len(row[key]) for row in [dict(zip(COLUMNS, COLUMNS, strict=True)), *table]) for key in COLUMNS}
    for row in [dict(zip(COLUMNS, COLUMNS, strict=True)), *table]:
        print(printable("  ".join(row[key].ljust(widths[key]) for key in COLUMNS).rstrip()))
