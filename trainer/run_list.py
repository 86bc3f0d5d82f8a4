"""All runs of a runs directory, and the one that somebody names."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.runs import RUN_ID, Run, RunError


def age_order(run: Run) -> str:
    """What runs are sorted by, oldest first."""
    return run.id[:15] + run.id[-4:]


def iter_runs(runs_dir: Path) -> Iterator[Run]:
    """All runs of a directory, newest first; none if it cannot be read. Strangers in it are left alone."""
    try:
        found = [Run(runs_dir / name) for name in os.listdir(runs_dir) if RUN_ID.fullmatch(name)]
    except OSError:
        return
    for run in sorted(found, key=age_order, reverse=True):
        if os.path.exists(run.path / "config.json"):
            yield run


def check_readable(runs_dir: Path) -> None:
    """Raises RunError if the directory is there and its runs cannot be listed."""
    try:
        with os.scandir(runs_dir):
            pass
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"the runs in {runs_dir} cannot be read: {error.strerror}") from error


def list_runs(runs_dir: Path) -> list[dict[str, Any]]:
    """The rows of `python -m trainer list`, newest first. Raises RunError if the directory cannot be read."""
    check_readable(runs_dir)
    return [run.state().summary() for run in iter_runs(runs_dir)]


def open_run(runs_dir: Path, reference: str) -> Run:
    """The run that an id, a path or `latest` names. Raises RunError."""
    if reference == "latest":
        check_readable(runs_dir)
        newest = next(iter_runs(runs_dir), None)
        if newest is None:
            raise RunError(f"there is no run in {runs_dir} yet")
        return newest
    path = runs_dir / reference if RUN_ID.fullmatch(reference) else Path(os.path.abspath(reference))
    if not reference or not os.path.isfile(path / "config.json"):  # Path.is_file raises for a name that is too long
        raise RunError(f"there is no run {reference!r} in {runs_dir}")
    if not RUN_ID.fullmatch(path.name):  # a link to a run: its queue is where the run is
        path = Path(os.path.realpath(path))
    return Run(path)
