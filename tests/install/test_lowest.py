"""The lower bounds that `make test-lowest` installs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("lowest", Path(__file__).with_name("lowest.py"))
lowest = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lowest)


def test_lower_bounds_are_exact_versions():
    text = '[project]\ndependencies = ["numpy>=1.26", "scikit-learn>=1.6"]\n'
    assert lowest.lower_bounds(text) == ["numpy==1.26", "scikit-learn==1.6"]


def test_every_dependency_has_a_lower_bound():
    assert {line.split("==")[0] for line in lowest.lower_bounds(lowest.PROJECT.read_text())} >= {
        "numpy",
        "numba",
        "narwhals",
    }


def test_other_requirements_are_rejected():
    with pytest.raises(ValueError, match="'numpy' is not of the form"):
        lowest.lower_bounds('[project]\ndependencies = ["numpy"]\n')
