"""`python -m trainer report`: one HTML file of a race or of runs. Imports no torch."""

from pathlib import Path
from typing import Annotated

import tyro

from trainer.race import RACE_ID, open_race
from trainer.report import race_report, runs_report, write_report
from trainer.run_list import open_run
from trainer.runs import RunError


def report_command(
    names: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN|RACE...", help="a race, or one or more runs: ids, paths, or `latest` for a run"),
    ],
    output: Annotated[Path, tyro.conf.arg(help="the file to write")] = Path("report.html"),
    runs_dir: Annotated[Path, tyro.conf.arg(help="where the run directories are")] = Path("runs"),
) -> int:
    """Write a page about runs or a race that needs neither this program nor a network."""
    if not names:
        raise RunError("name a race, or one or more runs")
    races = [name for name in names if RACE_ID.fullmatch(Path(name).name)]
    if races and len(names) > 1:
        raise RunError(f"give either one race or runs, not {races[0]!r} with others")
    if races:
        html = race_report(open_race(runs_dir, names[0]))
    else:
        html = runs_report([open_run(runs_dir, name) for name in dict.fromkeys(names)])
    write_report(html, output)
    print(output)
    return 0
