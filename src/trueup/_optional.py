"""Import of optional packages, which a plain install does not have."""

from __future__ import annotations

import importlib
from typing import Any

from trueup.errors import MissingPackageError


def require(name: str, *, extra: str | None = None) -> Any:
    """Import a package; raise MissingPackageError with the ``extra``, or the package, to install if that fails."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name is not None and name.startswith(error.name)
        what = "which is not installed" if absent else f"which cannot be imported ({error})"
        install = name if extra is None else f"'trueup[{extra}]'"
        raise MissingPackageError(f"this needs the package {name!r}, {what}", hint=f"pip install {install}") from error
