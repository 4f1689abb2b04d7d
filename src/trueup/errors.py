"""Exception and warning classes of trueup.

An error states what was wrong, what was received and where, and then, on a line of its own, what to do about it.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "ArgumentError",
    "ClusterWarning",
    "ColumnError",
    "DataError",
    "DroppedColumnWarning",
    "ExportError",
    "FileError",
    "HardPredictionWarning",
    "IdentifierWarning",
    "ImportedModelWarning",
    "InfiniteValueWarning",
    "InvalidScoreWarning",
    "LeakageWarning",
    "LostWorkerError",
    "MissingPackageError",
    "NotFittedError",
    "OneClassWarning",
    "ScoreColumnWarning",
    "ShiftWarning",
    "SoftOutcomeWarning",
    "TrainingRowsWarning",
    "TrueupError",
    "TrueupWarning",
    "UnreadColumnWarning",
    "UnseenWarning",
    "WarningRecord",
]


class TrueupError(ValueError):
    """Base class of all errors that trueup raises on purpose.

    Parameters
    ----------
    message : str
        What was wrong, what was received, where, in how many rows. If the error is about one parameter, the message
        starts with its name.
    hint : str, optional
        What to do about it; printed on a line of its own. ``{name}`` stands for the setting of that name.
    parameter : str, optional
        The parameter that the error is about, as Python spells it. The command line prints its option instead.
    settings : mapping, optional
        Parameters that the hint suggests, with their values; ``...`` stands for "a value of your choice". Python shows
        ``task="regression"``, the command line ``--task regression``.

    Examples
    --------
    >>> from trueup.errors import DataError
    >>> print(DataError("the outcome is not 0 or 1", hint="use {task} for amounts", settings={"task": "regression"}))
    the outcome is not 0 or 1
    hint: use task="regression" for amounts
    """

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        *,
        parameter: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.message = message
        self.parameter = parameter
        self.settings = dict(settings or {})
        self._hint = hint
        self.hint = self.format_hint(_python_setting)
        super().__init__(message if hint is None else f"{message}\nhint: {self.hint}")

    def format_hint(self, setting: Callable[[str, Any], str]) -> str | None:
        """Return the hint with every suggested parameter written by ``setting(name, value)``."""
        if self._hint is None or not self.settings:
            return self._hint
        return self._hint.format(**{name: setting(name, value) for name, value in self.settings.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), self.message, self._hint, parameter=self.parameter, settings=self.settings)
        return make, (), self.__dict__.copy()


def _python_setting(name: str, value: Any) -> str:
    if value is ...:
        return f"{name}=..."
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={value!r}"


class ArgumentError(TrueupError):
    """A parameter has a value that is not allowed."""


class ColumnError(TrueupError):
    """A column is missing, appears twice, or cannot have the role it was given."""


class DataError(TrueupError):
    """A column contains values that its role does not allow."""


class FileError(TrueupError):
    """A file or query could not be read or written."""


class ExportError(TrueupError):
    """An export does not compute what its model computes; it was not written."""


class NotFittedError(TrueupError, AttributeError):
    """A calibrator was asked to predict or explain before it was fitted."""


class MissingPackageError(TrueupError, ImportError):
    """An optional package is not installed."""


class LostWorkerError(TrueupError):
    """A worker process or machine of a cluster was lost; the data is not at fault.

    ``missed`` is true if the worker that raises the error lost contact with another one, rather than failing itself.
    """

    def __init__(self, message: str, hint: str | None = None, *, missed: bool = False, **fields: Any) -> None:
        super().__init__(message, hint, **fields)
        self.missed = missed


class TrueupWarning(UserWarning):
    """Base class of all warnings of trueup."""


class OneClassWarning(TrueupWarning):
    """All outcomes are equal, so calibration can hardly be tested."""


class UnseenWarning(TrueupWarning):
    """No value of a categorical column was seen in training."""


class TrainingRowsWarning(TrueupWarning):
    """The rows look like those the base model was trained on or the calibrator was fitted on: results are optimistic."""


class HardPredictionWarning(TrueupWarning):
    """Every prediction is 0 or 1: labels instead of probabilities, or outcome and prediction are swapped."""


class SoftOutcomeWarning(TrueupWarning):
    """Most outcomes are neither 0 nor 1: rates or shares, which ``task="regression"`` tests, or probabilities."""


class ShiftWarning(TrueupWarning):
    """The score distribution differs from that of the labelled rows, so corrections measured there may not apply."""


class IdentifierWarning(TrueupWarning):
    """A column looks like an identifier: it has nearly as many levels as rows, and was left out, or large integers."""


class UnreadColumnWarning(TrueupWarning):
    """Columns without a role were left out, because trueup does not read their types."""


class ClusterWarning(TrueupWarning):
    """A column identifies rows that belong together, and no cluster was given: p-values are too small."""


class LeakageWarning(TrueupWarning):
    """A column predicts the outcome almost perfectly, unlike the prediction: it may be known only after the outcome."""


class InvalidScoreWarning(TrueupWarning):
    """Some rows have no valid score, and their prediction is NaN, as ``on_error="nan"`` requests."""


class InfiniteValueWarning(TrueupWarning):
    """Columns that form segments or features have infinite values, which bins and trees take for the extremes."""


class DroppedColumnWarning(TrueupWarning):
    """A correction uses columns that the predictions of its base estimator do not depend on."""


class ScoreColumnWarning(TrueupWarning):
    """A column that was not named looks like another score of the same outcome, and is used as any other column."""


class ImportedModelWarning(TrueupWarning):
    """A model of another package predicts scores for some rows for which that package predicts none."""


class WarningRecord(NamedTuple):
    """A warning about the data that a result keeps, so that its pages and exports state it as well.

    Attributes
    ----------
    category : str
        Name of the warning class, such as "ClusterWarning".
    message, hint : str
        What was found, and what to do about it.
    column : str or None
        The column that the warning is about, if it is one.

    Examples
    --------
    >>> from trueup.errors import WarningRecord
    >>> str(WarningRecord("OneClassWarning", "every outcome is 0", "check the outcome column"))
    'every outcome is 0; check the outcome column'
    """

    category: str
    message: str
    hint: str = ""
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


def warn(
    category: type[TrueupWarning], message: str, hint: str = "", *, column: str | None = None, stacklevel: int
) -> WarningRecord:
    """Warn, ``stacklevel`` calls above the caller, and return the warning as a record for the notes of a result."""
    warnings.warn(f"{message}\nhint: {hint}" if hint else message, category, stacklevel=stacklevel + 1)
    return WarningRecord(category.__name__, message, hint, column)
