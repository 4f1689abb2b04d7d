"""Import of packages that an install may lack: those of extras and, where only scoring is installed, all but NumPy."""

from __future__ import annotations

import functools
import importlib
import importlib.util
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


def require_installed(what: str, *packages: str, otherwise: str | None = None) -> None:
    """Raise MissingPackageError unless ``packages`` of the plain install are there, which ``what`` needs."""
    missing = [name for name in packages if not _is_installed(name)]
    if missing:
        several = "packages" if len(missing) > 1 else "package"
        absent = "are not installed" if len(missing) > 1 else "is not installed"
        raise MissingPackageError(
            f"{what} needs the {several} {', '.join(map(repr, missing))}, which {absent}",
            hint="pip install trueup" + (f", {otherwise}" if otherwise else ""),
        )


@functools.cache
def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


@functools.cache
def installed_version() -> str:
    """Return the version of trueup, which is installed as ``trueup`` or, to score alone, as ``trueup-score``."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trueup")
    except PackageNotFoundError:
        return version("trueup-score")
