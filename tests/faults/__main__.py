"""The fault table: python -m tests.faults [--only NAME ...] [--skip NAME ...] [--quick] [--repeat N] [--output FILE].

Injects every fault of the catalogue into real processes, one after the other, and prints a line for each: what was
promised and what was seen. Exit code 1 if a promise was broken.
"""

import argparse
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from tests.faults.catalogue import CATALOGUE, FAILED, Fault, Result, perform
from tests.faults.scenarios import SCENARIOS

LIMIT = 1200  # seconds for one scenario; each also has limits of its own
COLUMNS = ("#", "fault", "injected", "promised", "seen", "seconds", "left", "verdict")


@contextmanager
def time_limit(seconds: int):
    def over(*_: object) -> None:
        raise TimeoutError(f"the scenario was not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def cells(result: Result) -> list[str]:
    fault = result.fault
    seen = "".join(c if c.isprintable() else "?" for c in result.seen)
    told = [fault.name, fault.injected, fault.promised, seen]
    return [str(fault.number), *told, f"{result.seconds:.1f}", str(result.left), result.verdict]


def print_line(result: Result) -> None:
    number, name, injected, promised, seen, seconds, left, verdict = cells(result)
    mark = verdict.ljust(6)
    print(
        f"{number:>3} {mark} {seconds:>6} s  {left} left  {name}: {injected} -> {promised} | seen: {seen}", flush=True
    )
    if result.trace and os.environ.get("FAULTS_TRACE"):
        print(result.trace, flush=True)


def markdown(results: list[Result], summary: str) -> str:
    def row(texts) -> str:
        return "| " + " | ".join(" ".join(text.replace("|", "\\|").split()) for text in texts) + " |"

    lines = [row(COLUMNS), row(["---"] * len(COLUMNS)), *(row(cells(result)) for result in results)]
    return "\n".join(["# Faults", "", summary, "", *lines, ""])


def summarise(results: list[Result], seconds: float) -> str:
    counts: dict[str, int] = {}
    for result in results:
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
    left = sum(result.left for result in results)
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{len(results)} faults: {parts}; {left} processes left; {seconds:.0f} s"


def names_of(fault: Fault) -> set[str]:
    """What a fault can be chosen by: its own name and that of its file."""
    return {fault.name, fault.act.__module__.split(".")[-1]}


def chosen(arguments: argparse.Namespace) -> list[Fault]:
    for name in (*arguments.only, *arguments.skip):
        if name not in CATALOGUE and name not in SCENARIOS:
            sys.exit(f"error: there is no fault {name!r}; --list shows them all")
    only, skip = set(arguments.only), set(arguments.skip)
    faults = [fault for fault in CATALOGUE.values() if not only or names_of(fault) & only]
    return [fault for fault in faults if not names_of(fault) & skip and (fault.quick or not arguments.quick)]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make faults", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help="these faults, or all of a file, as in `stopping`"
    )
    parser.add_argument("--skip", nargs="+", metavar="NAME", default=[], help="all but these, as `fifty-kills`")
    parser.add_argument("--quick", action="store_true", help="those that the tests perform, too")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="each fault N times")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the table as Markdown")
    parser.add_argument("--list", action="store_true", help="name the faults and inject none")
    arguments = parser.parse_args(argv)
    faults = chosen(arguments)
    if arguments.list:
        for fault in faults:
            print(f"{fault.number:>3} {'quick' if fault.quick else '     '} {fault.name}: {fault.injected}")
        return 0
    began = time.monotonic()
    results = []
    for fault in faults:
        for _ in range(arguments.repeat):
            with time_limit(LIMIT):
                results.append(perform(fault, os.geteuid() == 0))
            print_line(results[-1])
    summary = summarise(results, time.monotonic() - began)
    print(summary)
    if arguments.output:
        arguments.output.write_text(markdown(results, summary))
    return 1 if any(result.verdict == FAILED for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
