"""Signals that ask a run to stop. Imports no torch."""

import signal
from typing import Any

from trainer.log import say
from trainer.runs import Run


class StopOnSignal:
    """Turns SIGINT, SIGTERM and SIGHUP into a stop that all ranks agree on; a second one ends the run at once."""

    NUMBERS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self, run: Run):
        self.run = run
        self.before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in self.NUMBERS:
            self.before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _handle(self, *_: object) -> None:
        if self.run.is_asked_to_stop:
            raise KeyboardInterrupt
        say("stopping: saving a checkpoint; once more to stop at once" if self.run.has_claim else "stopping")
        try:
            self.run.ask_to_stop()
        except OSError:  # a directory that cannot be written or is gone: there is no other way to ask the ranks
            raise KeyboardInterrupt from None
