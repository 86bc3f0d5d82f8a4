"""What the buttons of the Train tab do with presses that come at odd moments."""

import json
import os
import time
from pathlib import Path

import pytest

from trainer.config import TrainConfig
from trainer.run_list import iter_runs
from trainer.runs import Run
from ui.run_buttons import RunButtons
from ui.supervisor import Supervisor
from ui.waiting import Board

CONFIG = TrainConfig(dataset="images", data_dir="pictures")  # a path that depends on the working directory


@pytest.fixture
def buttons(runs_dir: Path) -> RunButtons:
    """Its queue stands still: a run of this very process is at work."""
    Run.create(runs_dir, TrainConfig(dataset="shapes")).claim()
    made = RunButtons.__new__(RunButtons)  # without its widgets, which need a page around them
    made.supervisor, made.board = Supervisor(runs_dir), Board(runs_dir)
    return made


def press(buttons: RunButtons, shown: Run | None) -> Run:
    live = {"run": shown.id} if shown else {}
    return Run(buttons.supervisor.runs_dir / buttons.press_start(live, CONFIG)["run"])


def test_a_second_press_within_a_moment_is_the_same_wish(buttons: RunButtons):
    run = press(buttons, None)
    assert press(buttons, run) == run


def test_a_press_after_the_run_was_cancelled_starts_another(buttons: RunButtons):
    run = press(buttons, None)
    buttons.supervisor.stop(run.id)
    assert press(buttons, run) != run


def test_a_press_after_the_clock_was_set_back_starts_another(buttons: RunButtons):
    run = press(buttons, None)
    record = json.loads(run.launch_path.read_text())
    run.launch_path.write_text(json.dumps({**record, "queued": time.time() + 3600}))
    assert press(buttons, run) != run


@pytest.mark.skipif(os.geteuid() == 0 and not hasattr(os, "seteuid"), reason="needs another user")
def test_a_run_that_cannot_be_entered_is_refused_in_words(buttons: RunButtons):
    (run,) = iter_runs(buttons.supervisor.runs_dir)
    parents = [path for path in (run.path, *run.path.parents) if str(path).startswith("/tmp/pytest")]
    modes = {path: path.stat().st_mode for path in parents}
    try:
        for path in parents[1:]:
            path.chmod(0o777)
        run.path.chmod(0)
        if os.geteuid() == 0:
            os.seteuid(65534)
        assert buttons.press_stop({"run": run.id}).startswith("Not stopped: there is no run")
        assert buttons.first_shown(run.id) is None
        assert buttons.show({"run": run.id}, {})
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)
