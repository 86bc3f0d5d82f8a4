"""How a run ends. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """completed, stopped, diverged or failed; why, unless it is plain; after how many steps."""

    status: str
    step: int
    error: str = ""
