"""From arguments to a listening server, and its end."""

import errno
import os
import socket
import sys
import threading
from pathlib import Path

from starlette.middleware import Middleware

from trainer.runs import Run
from ui import guard
from ui.layout import build_app, launch_options
from ui.meaning import python, runs_flag
from ui.page_version import SameVersion, version_of
from ui.supervisor import Supervisor

PORTS = range(7860, 7960)
TICK = 1.0  # seconds between two looks at the queue


class ServeError(ValueError):
    """The server cannot start as asked; the text says why."""


def serve(
    host: str, port: int | None, runs_dir: Path, data_dir: str, auth_file: Path | None, stopped: threading.Event
) -> None:
    """Serve the page until `stopped` is set. Raises ServeError."""
    try:
        users = guard.read_users(auth_file)
    except ValueError as error:
        raise ServeError(str(error)) from None
    if host not in guard.LOOPBACK and not users:
        raise ServeError(
            f"--host {host} lets other machines in, who could start programs here: give --auth FILE with "
            f"name:password lines, or set {guard.AUTH_VARIABLE}"
        )
    os.environ.pop(guard.AUTH_VARIABLE, None)  # no child process needs it
    page = build_app(runs_dir, data_dir)
    chosen = free_port(host, port)
    try:
        page.launch(
            server_name=host,
            server_port=chosen,
            prevent_thread_lock=True,
            auth=guard.Login(users) if users else None,
            app_kwargs={"middleware": [*guard.middleware(host), Middleware(SameVersion, version=version_of(page))]},
            **launch_options(page),
        )
    except OSError as error:
        raise ServeError(f"the server cannot listen on {host}, port {chosen}: {error}") from None
    print(f"Parallel Trainer: http://{_shown(host)}:{chosen}", flush=True)
    supervisor = Supervisor(runs_dir)
    while not stopped.wait(TICK):
        supervisor.tick()
    page.close(verbose=False)
    _say_what_goes_on(supervisor)


def _say_what_goes_on(supervisor: Supervisor) -> None:
    living, queued = supervisor.living(), supervisor.queued()
    for run in living:
        print(f"{run.id} trains on. To stop it: {_stop_command(run)}")
    for run in queued:
        when = "starts when its devices are free" if living else "starts when the page is opened again"
        print(f"{run.id} is queued and {when}. To take it out of the queue: {_stop_command(run)}")
    sys.stdout.flush()


def _stop_command(run: Run) -> str:
    return f"{python()} -m trainer stop {run.id}{runs_flag(run.path.parent)}"


def free_port(host: str, asked: int | None) -> int:
    """The port that was asked for, any free one for 0, or the first free one of the usual. Raises ServeError."""
    candidates = PORTS if asked is None else [asked]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in candidates:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return probe.getsockname()[1]
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise ServeError(f"--host {host}, port {port}: {error.strerror}") from None
            except OverflowError:
                raise ServeError(f"--port {port}: must be from 0 to 65535") from None
    if asked is None:
        raise ServeError(f"the ports {PORTS[0]} to {PORTS[-1]} are all taken: give a free one with --port")
    raise ServeError(f"port {asked} is taken by another program: give another, or 0 for any free one")


def _shown(host: str) -> str:
    return {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, f"[{host}]" if ":" in host else host)
