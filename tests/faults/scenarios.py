"""Importing this fills the catalogue."""

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
    "strangers",
    "network",
    "equality",
    "gpus",
)

for _name in SCENARIOS:
    import_module(f"tests.faults.{_name}")
