"""Faults injected into real runs. `make faults` prints the table; the quick ones are tests, too."""

from importlib import import_module

# One file for each kind of fault; the order is that of the table.
SCENARIOS = (
    "processes",
    "launchers",
    "hangs",
    "stopping",
    "signals",
    "checkpoints",
    "disk",
    "data",
    "queueing",
    "servers",
    "requests",
    "environment",
    "limits",
    "network",
    "equality",
    "gpus",
)

for _name in SCENARIOS:
    import_module(f"{__name__}.{_name}")
