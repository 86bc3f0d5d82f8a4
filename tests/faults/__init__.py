"""Faults injected into real runs. `make faults` prints the table; the quick ones are tests, too."""
