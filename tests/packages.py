"""Packages of the dev extra that tests may lack on a machine of their own, but not in CI."""

from __future__ import annotations

import importlib
import os

import pytest


def need(package):
    """Skip a test, with the reason, if a package is not installed; fail with CI=true."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        reason = f"{package} is not installed ({error}): pip install 'trueup[dev]'"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
