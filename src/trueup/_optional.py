"""The one door to packages that a plain install does not have."""

from __future__ import annotations

import importlib
from typing import Any

from trueup.errors import MissingPackageError


def require(name: str, *, extra: str) -> Any:
    """Import a package of an extra, or raise MissingPackageError with how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name is not None and name.startswith(error.name)
        what = "which is not installed" if absent else f"which cannot be imported ({error})"
        raise MissingPackageError(
            f"this needs the package {name!r}, {what}", hint=f"pip install 'trueup[{extra}]'"
        ) from error
