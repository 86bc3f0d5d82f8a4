"""Cases side by side: each lives in a process of its own, and they take turns, slice by slice."""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack

from benchmarks.cases import TABLES

START = 300  # seconds for a case to build itself and do a first slice


def race(table: str, rounds: int, progress) -> dict[str, list[float]]:
    """Pictures a second of each case, one number a round. Only one case works at any moment."""
    rates: dict[str, list[float]] = {name: [] for name in TABLES[table].cases}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))  # for their runs
        workers = {}
        for name in rates:  # one after the other, so that none is disturbed while it warms up
            command = [sys.executable, "-m", "benchmarks.worker", table, name]
            worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": folder}
            )
            stack.callback(_end, worker)
            workers[name] = worker
            _answer(worker, name)
        for number in range(rounds):
            progress(f"{table}: round {number + 1} of {rounds}")
            for name, worker in workers.items():
                worker.stdin.write("\n")
                worker.stdin.flush()
                rates[name].append(float(_answer(worker, name)))
    return rates


def _answer(worker: subprocess.Popen, name: str) -> str:
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"the case {name!r} ended with {worker.wait()}")
    return line


def _end(worker: subprocess.Popen) -> None:
    worker.stdin.close()
    try:
        worker.wait(30)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    worker.stdout.close()
