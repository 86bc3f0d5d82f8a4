"""The quick faults of the table, each a claim: injected into real processes, they end as promised (make faults)."""

import os

import pytest

import tests.faults.scenarios  # noqa: F401  (fills the catalogue)
from tests.faults.catalogue import CATALOGUE, OK, perform


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, fault in CATALOGUE.items() if fault.quick])
def test_a_fault_ends_as_promised(name: str):
    result = perform(CATALOGUE[name], os.geteuid() == 0)
    assert (result.verdict, result.left) == (OK, 0), f"{result.seen}\n{result.trace}"
