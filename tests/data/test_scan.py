"""Memory budgets of scans."""

from __future__ import annotations

import pytest

from trueup.data.scan import parse_memory, row_memory
from trueup.errors import ArgumentError


@pytest.mark.parametrize(
    ("memory", "expected"), [("1.5 GB", 1_500_000_000), ("2GiB", 2_147_483_648), (10**9, 10**9), ("500m", 500_000_000)]
)
def test_memory_is_a_number_of_bytes_or_has_a_unit(memory, expected):
    assert parse_memory(memory) == expected


@pytest.mark.parametrize("memory", ["lots", "-1GB", "2 XB", True, "", 10**6])
def test_invalid_memory_is_rejected(memory):
    with pytest.raises(ArgumentError, match=r"memory must be (a number of bytes|at least 300 MB)"):
        parse_memory(memory)


def test_rows_have_half_of_the_memory_that_the_libraries_leave():
    assert row_memory(1_250_000_000) == 500_000_000
    assert row_memory(10**6) == 25_000_000
