"""What long runs and long lists cost the server: seconds and bytes, without a browser."""

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.record import spread
from trainer.config import TrainConfig
from trainer.run_list import list_runs
from trainer.runs import Run
from ui.curves import Curves
from ui.json_reply import json_reply
from ui.live_chart import points_reply
from ui.run_table import RunRows
from ui.waiting import Board

TICKS = 200
RUNS, STEPS_EACH = 500, 2_000
HEADER = ("what", "seconds or milliseconds", "bytes in", "bytes out")


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def write_run(runs_dir: Path, num_steps: int) -> Run:
    """A run with so many logged steps and an evaluation after each thousand, as the trainer writes them."""
    run = Run.create(runs_dir, TrainConfig(parallel="single"))
    draw = random.Random(0).random
    with run.events_path.open("w") as file:
        for step in range(1, num_steps + 1):
            moment, epoch = f"{1.7e9 + step / 100:.3f}", round(step / 391, 6)
            file.write(
                f'{{"kind":"step","time":{moment},"step":{step},"epoch":{epoch},"loss":{draw()},"accuracy":{draw()},'
                f'"lr":0.01,"images_per_second":{3000 + draw():.1f},"grad_norm":{draw()}}}\n'
            )
            if step % 1000 == 0:
                file.write(
                    f'{{"kind":"eval","time":{moment},"step":{step},"epoch":{epoch},"loss":0.5,"accuracy":{draw()},'
                    '"count":10000}\n'
                )
    return run


def _timed(work: Callable[[], Any], times: int) -> tuple[list[float], Any]:
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - begun)
    return seconds, result


def measure(rounds: int) -> tuple[list[list[str]], dict[str, list[float]]]:
    """(rows of a table, seconds by name)."""
    rows, numbers = [], {}

    def add(name: str, seconds: list[float], sent: str = "", got: str = "", in_ms: bool = False) -> None:
        numbers[name] = seconds
        shown = spread([1000 * s for s in seconds], 2) + " ms" if in_ms else spread(seconds, 2) + " s"
        rows.append([name, shown, sent, got])

    for num_steps in (1_000, 100_000, 1_000_000):
        with folder() as runs_dir:
            run = write_run(runs_dir, num_steps)

            def opened(run: Run = run, runs_dir: Path = runs_dir) -> tuple[Callable, bytes, str]:
                answer = json_reply(partial(points_reply, Curves(runs_dir)), "points")
                request = {"runs": [{"run": run.id}], "bins": 1024}
                return answer, answer(request).body, json.dumps(request)

            seconds, (answer, body, sent) = _timed(opened, rounds)
            add(f"first load of {num_steps:,} steps", seconds, f"{len(sent)}", f"{len(body):,}")
            known = json.loads(body)["runs"][0]
            again = {"runs": [{key: known[key] for key in ("run", "version", "points", "tests", "seen")}]}
            seconds, reply = _timed(partial(answer, again), TICKS)
            out = f"{len(reply.body)}"
            add(f"a tick without news, {num_steps:,} steps", seconds, f"{len(json.dumps(again))}", out, in_ms=True)
    with folder() as runs_dir:
        for _ in range(RUNS):
            write_run(runs_dir, STEPS_EACH)
        add(f"`list` of {RUNS} runs of {STEPS_EACH:,} steps", _timed(lambda: list_runs(runs_dir), rounds)[0])

        def table() -> dict[str, Any]:
            return RunRows(Board(runs_dir)).since({})

        seconds, reply = _timed(table, rounds)
        add(f"the Runs tab with {RUNS} runs, first load", seconds, "", f"{len(json.dumps(reply)):,}")
    return rows, numbers
