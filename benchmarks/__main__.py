"""Measure everything side by side: python -m benchmarks [--only TABLE ...] [--rounds N] [--record].

Prints tables with ratios taken within one run, each case against its rival in the same round. With --record the tables
and all numbers are also written to benchmarks/records/. On a machine that does something else, ratios are noise.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import browser, page, profiled
from benchmarks.cases import TABLES
from benchmarks.race import race
from benchmarks.record import as_markdown, machine, paired, spread, write

Result = tuple[str, Any]  # Markdown, numbers


def progress(text: str) -> None:
    print(f"\r\033[K{text}" if sys.stderr.isatty() else text, end="" if sys.stderr.isatty() else "\n", file=sys.stderr)


def measure_rates(name: str, rounds: int) -> Result:
    rates = race(name, rounds, progress)
    return _rates(name, rates, TABLES[name].ratios), rates


def _rates(name: str, rates: dict[str, list[float]], pairs: list[tuple[str, str]]) -> str:
    shown = as_markdown(
        f"{name}: pictures a second", ("case", "median (range)"), [[k, spread(v)] for k, v in rates.items()]
    )
    ratios = [[ours, theirs, paired(rates[ours], rates[theirs])] for ours, theirs in pairs]
    return f"{shown}\n{as_markdown(f'{name}: ratios', ('case', 'against', 'median ratio (range)'), ratios)}"


def measure_page(rounds: int) -> Result:
    rows, numbers = page.measure(rounds)
    return as_markdown("page: what the server spends", page.HEADER, rows), numbers


def measure_start(rounds: int) -> Result:
    with page.folder() as directory:
        seconds = browser.click_to_first_point(directory, rounds, progress)
    rows = [[mode, spread(times, 2)] for mode, times in seconds.items()]
    return as_markdown(
        "start: seconds from the click to the first loss drawn", ("mode", "median (range)"), rows
    ), seconds


def measure_watching(rounds: int) -> Result:
    with page.folder() as directory:
        rates = browser.watching(directory, rounds, progress)
    alone, watched = rates
    return _rates("watching", rates, [(watched, alone)]), rates


def measure_profiled(rounds: int) -> Result:
    rows, numbers = profiled.measure(max(1, rounds // 4), progress)
    return as_markdown("profiled: milliseconds in a step of ddp x2, rank 0", profiled.HEADER, rows), numbers


def main() -> int:
    measures: dict[str, Callable[[int], Result]] = {
        **{name: lambda rounds, name=name: measure_rates(name, rounds) for name in TABLES},
        "profiled": measure_profiled,
        "page": measure_page,
        "start": measure_start,
        "watching": measure_watching,
    }
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=measures, default=list(measures), metavar="TABLE")
    parser.add_argument("--rounds", type=int, default=8, help="slices of each case (default 8)")
    parser.add_argument("--record", action="store_true", help="write the result to benchmarks/records/")
    arguments = parser.parse_args()
    facts, tables, numbers = machine(), [], {}
    for name in arguments.only:
        table, numbers[name] = measures[name](max(1, arguments.rounds))
        tables.append(table)
        progress("")
        print(table, flush=True)
    if arguments.record:
        print(write(tables, facts, {"rounds": arguments.rounds, **numbers}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
