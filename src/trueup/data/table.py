"""Table: validated NumPy columns of equal length, and their Schema: roles and vocabularies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal
from weakref import WeakValueDictionary

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trueup._types import AnyArray, FloatArray, IntArray, UInt64Array
    from trueup.data.sampling import Sampling
    from trueup.errors import WarningRecord

MAX_UNUSED = 1000
HELD_OUT_SUFFIX = "_held_out"  # of a column that marks the column before the suffix as held-out scores of a cross-fit
Kind = Literal["categorical", "numeric", "date"]
Task = Literal["binary", "regression", "multiclass"]


def sort_levels(levels: Collection[str]) -> tuple[str, ...]:
    """Sort level texts: as numbers if all of them are integers, else by code point."""
    try:
        return tuple(sorted(levels, key=lambda text: (int(text), text)))
    except ValueError:
        return tuple(sorted(levels))


@dataclass(frozen=True)
class Feature:
    """A feature: a column that is not the outcome, the prediction, the weight or the cluster."""

    name: str
    kind: Kind  # dates are stored as days since 1970-01-01
    levels: tuple[str, ...] = ()  # of a categorical column, in the order of its codes
    unseen_level: bool = False  # whether the last level stands for unseen values, which otherwise count as missing


@dataclass(frozen=True)
class Schema:
    """Roles and features of a Table."""

    task: Task
    outcome: str | None
    prediction: tuple[str, ...]
    weight: str | None
    features: tuple[Feature, ...]
    classes: tuple[str, ...] = ()
    cluster: str | None = None  # the column that identifies rows that belong together: a customer, a patient
    logits: bool = False  # whether prediction columns hold logits; a Table always holds probabilities

    @property
    def levels(self) -> tuple[int, ...]:
        """The number of levels of each feature; -1 for numbers and dates."""
        return tuple(len(feature.levels) if feature.kind == "categorical" else -1 for feature in self.features)

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of the columns of corrected scores."""
        return tuple(f"{name}_trueup" for name in self.prediction or ("prediction",))


@dataclass(frozen=True, eq=False)
class Table:
    """Validated rows in memory, as NumPy arrays.

    Numeric and date features are float64 with NaN for missing (dates in days since 1970-01-01); categorical ones are int32
    codes into the vocabulary of the schema, -1 for missing or unseen.
    """

    schema: Schema
    columns: Mapping[str, AnyArray]  # the features
    prediction: FloatArray  # one column, or one per class
    outcome: FloatArray | None = None  # for several classes the index of the class
    weight: FloatArray | None = None  # positive
    kept: IntArray | None = None  # the indices of these rows in the input, if some were set aside
    unlabelled: int = 0  # rows that were set aside because they have no outcome
    weightless: int = 0  # rows that were set aside because their weight is 0
    left_out: Mapping[str, str] = field(default_factory=dict)  # columns left out of the features, and why
    cluster: UInt64Array | None = None  # a hash of the identifier of the cluster, the same in every partition
    excluded: Mapping[Feature, AnyArray] = field(default_factory=dict)  # columns that no fit may use: reported only
    sampling: Sampling | None = None  # shares of the rows that were kept, by which the weights are divided
    unused: tuple[str, ...] = ()  # other columns of the frame; none if there are more than MAX_UNUSED
    arrays: frozenset[str] = frozenset()  # the roles that were passed as values; their names are no columns
    warnings: tuple[WarningRecord, ...] = ()  # that were issued when the rows were read

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (*self.columns.values(), *self._optional) if column is not None}
        if lengths - {len(self.prediction)}:
            raise AssertionError(f"a Table of unequal columns: {sorted(lengths | {len(self.prediction)})}")

    def __len__(self) -> int:
        return len(self.prediction)

    @property
    def _optional(self) -> tuple[AnyArray | None, ...]:
        return self.outcome, self.weight, self.cluster

    @property
    def y(self) -> FloatArray:
        """The outcome of a Table that was read with one."""
        assert self.outcome is not None
        return self.outcome

    @property
    def given_weight(self) -> FloatArray | None:
        """The weights as they were given, before they were divided by the shares of a sample; None without any."""
        if self.sampling is None or self.weight is None:
            return self.weight
        return None if self.schema.weight is None else np.asarray(self.weight * self.sampling.shares(self.y))

    def take(self, rows: IntArray | slice) -> Table:
        """Return some of the rows, in the given order; a slice copies nothing."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        outcome, weight, cluster = (None if array is None else array[rows] for array in self._optional)
        return replace(
            self, columns=columns, prediction=self.prediction[rows], outcome=outcome, weight=weight, cluster=cluster,
            kept=None, excluded={},
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Table of {len(self):,} rows, task {self.schema.task}, features {', '.join(self.columns) or 'none'}>"


# Held-out scores of the cross-fitted calibrators in this process, by digest: an audit of them must say what they are.
_CROSS_FITTED: WeakValueDictionary[tuple[int, int], FloatArray] = WeakValueDictionary()


def remember_cross_fitted(scores: FloatArray) -> None:
    """Remember held-out scores of a cross-fit, as long as this array exists, for `is_cross_fitted`."""
    _CROSS_FITTED[_digest(scores)] = scores


def is_cross_fitted(scores: FloatArray) -> bool:
    """Return whether these are the held-out scores of a cross-fit in this process, in any order."""
    return scores.ndim == 1 and bool(_CROSS_FITTED) and _digest(scores) in _CROSS_FITTED


def _digest(scores: FloatArray) -> tuple[int, int]:
    """Return the number of scores and the sum of their bits, modulo 2^64; it does not depend on the order."""
    return len(scores), int(np.ascontiguousarray(scores, np.float64).view(np.uint64).sum())
