"""Parallel Trainer in the browser: python app.py [--port N]. Open the address that it prints."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Paths become absolute; the trainer's own defaults stay as they are."""
    parser = argparse.ArgumentParser(prog="app.py", description="Parallel Trainer in the browser.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; another than this needs a password")
    parser.add_argument("--port", type=int, help="7860, or the next free one; 0: any free one")
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs", help="where the runs are kept (runs)")
    parser.add_argument("--data-dir", type=Path, help="where CIFAR-10 is kept (data)")
    parser.add_argument(
        "--auth",
        type=Path,
        metavar="FILE",
        help="file with name:password lines; or set PARALLEL_TRAINER_AUTH=name:password",
    )
    arguments = parser.parse_args(argv)
    if arguments.port is not None and not 0 <= arguments.port <= 65535:
        parser.error(f"--port {arguments.port}: must be from 0 to 65535")
    return arguments


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    runs_dir = arguments.runs_dir.resolve()
    data_dir = str(arguments.data_dir.resolve()) if arguments.data_dir else "data"
    os.chdir(ROOT)  # relative paths of the settings mean the same here and in the trainer
    if sys.stderr.isatty():  # somebody is waiting
        print("Starting the page ...", file=sys.stderr, flush=True)
    from ui.serve import ServeError, serve

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        serve(arguments.host, arguments.port, runs_dir, data_dir, arguments.auth, stopped)
    except ServeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
