"""Every exception and warning class of trueup.

An error says what was wrong, what was got and where, and then, on a line of its own, what to do about it.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ArgumentError",
    "ColumnError",
    "DataError",
    "FileError",
    "HardPredictionWarning",
    "IdentifierWarning",
    "LostWorkerError",
    "MissingPackageError",
    "NotFittedError",
    "OneClassWarning",
    "ShiftWarning",
    "TrainingRowsWarning",
    "TrueupError",
    "TrueupWarning",
    "UnseenWarning",
]


class TrueupError(ValueError):
    """Base class of everything trueup raises on purpose.

    Parameters
    ----------
    message : str
        What was wrong, what was got, where, how many.
    hint : str, optional
        What to do about it; printed on a line of its own.

    Examples
    --------
    >>> from trueup.errors import TrueupError
    >>> print(TrueupError("the jar is shut", hint="turn the lid"))
    the jar is shut
    hint: turn the lid
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return type(self), (self.message, self.hint)


class ArgumentError(TrueupError):
    """A parameter outside the values it may take."""


class ColumnError(TrueupError):
    """A column that is not there, is there twice, or cannot play the role it was given."""


class DataError(TrueupError):
    """Values in a column that its role does not allow."""


class FileError(TrueupError):
    """A file or query that could not be read or written."""


class NotFittedError(TrueupError, AttributeError):
    """A calibrator that was asked to predict or explain before it was fitted."""


class MissingPackageError(TrueupError, ImportError):
    """An optional package that is not installed."""


class LostWorkerError(TrueupError):
    """A process or a machine was lost while the rows of a cluster were worked on: nothing is wrong with the data.

    ``missed`` says that the one who tells it only missed another.
    """

    def __init__(self, message: str, hint: str | None = None, *, missed: bool = False) -> None:
        super().__init__(message, hint)
        self.missed = missed

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _lost_again, (self.message, self.hint, self.missed)


def _lost_again(message: str, hint: str | None, missed: bool) -> LostWorkerError:  # noqa: FBT001
    return LostWorkerError(message, hint, missed=missed)


class TrueupWarning(UserWarning):
    """Base class of the warnings of trueup."""


class OneClassWarning(TrueupWarning):
    """All outcomes are the same: little can be said about calibration."""


class UnseenWarning(TrueupWarning):
    """A categorical column has no value that the model knows."""


class TrainingRowsWarning(TrueupWarning):
    """The rows of the fit look like those the base model was trained on."""


class HardPredictionWarning(TrueupWarning):
    """Every prediction is 0 or 1: labels rather than probabilities, or outcome and prediction swapped."""


class ShiftWarning(TrueupWarning):
    """Scores come from elsewhere than the labelled ones did: what was measured there need not hold here."""


class IdentifierWarning(TrueupWarning):
    """A column with nearly as many levels as rows was left out."""
