"""Identifiers of clusters: rows that belong together, such as the rows of one customer."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.data.columns import MAX_EXACT
from trueup.data.folds import hash_numbers, hash_texts
from trueup.errors import ClusterWarning, DataError, TrueupError, WarningRecord, warn
from trueup.kernels.sorting import digitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, UInt64Array
    from trueup.data.columns import ColumnSource, RawColumn
    from trueup.data.table import Table

# A column of repeated identifiers has at least so many values, each with less than so many rows on average; if its name
# looks like one, it only needs so many values that an audit with these clusters could test something.
MIN_IDENTIFIERS, MAX_MEAN_ROWS, MIN_NAMED = 100, 100, 10
SAMPLE_ROWS, MIN_SAMPLED = 2000, 90  # of so many rows, at least so many have a value of their own
MIN_SIGMAS, MIN_DESIGN_EFFECT = 5.0, 1.2  # of the correlation of residuals, below which there is no warning
MIN_SHARED, MIN_SHARED_CORRELATION = 0.8, 0.1  # share of rows that share features and score with others, and correlation
SCORE_BINS = 20
MAX_MISSING = 0.5  # share of the rows of an identifier
IDENTIFIER_NAME = re.compile(
    r"(^|_|\b)(id|ids|key|uuid|guid|customer|client|user|member|patient|person|account|household|session|query|visit|"
    r"contract|policy|borrower|applicant|subject)(_|\b|$)|(?<=[a-z])I[dD]$",
    re.IGNORECASE,
)


def cluster_keys(raw: RawColumn, name: str, describe: Callable[[BoolArray], str]) -> UInt64Array:
    """Return a hash of the identifier of each row, the same in every partition.

    Raise if an identifier is missing: such rows may belong together or not. ``describe`` returns where those rows are.
    """
    missing = raw.missing()
    if missing.any():
        raise DataError(
            f"cluster column {name!r} is missing {describe(missing)}",
            hint="fill it in; a row that belongs to no other row needs an identifier of its own",
        )
    if raw.coded is not None:
        return np.asarray(hash_texts(raw.coded.levels)[raw.coded.codes])
    values = raw.codes_or_values
    keys = hash_numbers([values])
    if raw.as_texts is not None and np.abs(values).max(initial=0.0) >= MAX_EXACT:
        coded = raw.as_texts().categories()  # distinct integers beyond 2**53 are equal as floats
        return np.where(np.abs(values) < MAX_EXACT, keys, hash_texts(coded.levels)[coded.codes])
    return keys


def warn_of_repeated_identifiers(table: Table, source: ColumnSource) -> list[WarningRecord]:
    """Warn, once, if rows with the same value of a column have correlated residuals: they are not independent.

    Features are examined, and other columns whose names look like identifiers; of several, the column with the largest
    design effect is named, unless another one explains it. A column qualifies if it has at least 100
    values, integers or texts but no dates, each with fewer than 100 rows on average, so that few could be a segment (these
    are left out); 10 values with any number of rows suffice if its name looks like an identifier.
    """
    dates = {feature.name for feature in table.schema.features if feature.kind == "date"}
    candidates = {name: column for name, column in table.columns.items() if name not in dates}
    features = {name: column for name, column in candidates.items() if _is_candidate(column, name)}
    names = [key for key in source.keys if IDENTIFIER_NAME.search(source.label(key))]
    taken = {*table.columns, *table.left_out, *table.schema.prediction, table.schema.outcome, table.schema.weight}
    others = _read_others(source, [key for key in names if source.label(key) not in taken], table)
    columns: Mapping[str, AnyArray] = {**others, **features}
    if not columns:
        return []
    residuals = _standardise(table.y, table.prediction)
    found = [_find_dependence(name, column, residuals) for name, column in columns.items()]
    return _warn(_drop_explained([one for one in found if one is not None], columns, residuals), stacklevel=5)


def warn_of_shared_features(table: Table, stacklevel: int) -> None:
    """Warn if rows with the same features and score have residuals that are much alike: copies, or rows of one customer."""
    numbers = [table.columns[one.name] for one in table.schema.features if one.kind not in ("categorical", "date")]
    if len(table.schema.prediction) != 1 or not any(_has_many_fractions(column) for column in numbers):
        return  # errors of cells of categories are what a fit corrects
    content = hash_numbers([*table.columns.values(), table.prediction])
    keys, codes, counts = np.unique(content, return_inverse=True, return_counts=True)
    shared = int(counts[counts > 1].sum())
    if len(keys) < MIN_IDENTIFIERS or shared < MIN_SHARED * len(codes) or len(codes) >= MAX_MEAN_ROWS * len(keys):
        return
    correlation, sigmas = within_correlation(_standardise(table.y, table.prediction), codes, len(keys))
    design = _design_effect(correlation, counts)
    if correlation < MIN_SHARED_CORRELATION or sigmas < MIN_SIGMAS or design < MIN_DESIGN_EFFECT:
        return
    warn(
        ClusterWarning,
        f"{shared:,} rows share all features and the score with other rows, and their residuals are alike (correlation "
        f"{min(correlation, 1.0):.2g}): if they are copies, or rows of one customer, the gain on held-out rows says little "
        "about new customers",
        'pass cluster="..." (--cluster on the command line), the column that identifies them',
        stacklevel=stacklevel,
    )


class IdentifierSample(NamedTuple):
    """Values of a column in some rows, with their outcomes and scores: all rows of some values, or one row in ``every``."""

    values: FloatArray
    y: FloatArray
    p: FloatArray
    every: int = 1


def warn_of_sampled_identifiers(samples: Iterable[tuple[str, IdentifierSample]], stacklevel: int) -> list[WarningRecord]:
    """Warn, once, as `warn_of_repeated_identifiers` does, of columns of files, given samples of their rows."""
    found = []
    for name, sample in samples:
        known = np.isfinite(sample.values) & np.isfinite(sample.y) & np.isfinite(sample.p)
        values, y, p = (column[known] for column in sample[:3])
        if len(values):
            found.append(_find_dependence(name, values, _standardise(y, p), sample.every))
    return _warn(found, stacklevel=stacklevel + 1)


class Dependence(NamedTuple):
    """Rows with the same value of a column are not independent: the design effect, the column and the correlation."""

    design: float
    name: str
    correlation: float


def _find_dependence(name: str, column: AnyArray, residuals: FloatArray, every: int = 1) -> Dependence | None:
    """Return how rows with the same value of a column depend on each other, None if they need no warning.

    One row in ``every`` was sampled: there are so many times as many rows of each value.
    """
    codes, counts = _count_values(column)
    few_rows_each = len(counts) >= MIN_IDENTIFIERS and len(codes) * every < MAX_MEAN_ROWS * len(counts)
    if not few_rows_each and not (len(counts) >= MIN_NAMED and IDENTIFIER_NAME.search(name)):
        return None
    codes, counts = _leave_out_segments(codes, counts, name, every)
    if len(counts) < MIN_NAMED:
        return None
    estimate, sigmas = within_correlation(residuals[codes >= 0], codes[codes >= 0], len(counts))
    correlation = min(estimate, 1.0)  # an estimate with few pairs may exceed 1
    design = _design_effect(correlation * every * counts.sum() / len(codes), counts)
    return Dependence(design, name, correlation) if sigmas >= MIN_SIGMAS and design >= MIN_DESIGN_EFFECT else None


def _leave_out_segments(codes: AnyArray, counts: AnyArray, name: str, every: int = 1) -> tuple[AnyArray, AnyArray]:
    """Leave out values with many rows, such as an amount of 0, unless the name is that of an identifier: -1, as missing."""
    many = counts * every >= MAX_MEAN_ROWS
    if not many.any() or IDENTIFIER_NAME.search(name):
        return codes, counts
    position = np.append(np.where(many, -1, np.cumsum(~many) - 1), -1)
    return position[codes], counts[~many]


def _drop_explained(
    found: Sequence[Dependence], columns: Mapping[str, AnyArray], residuals: FloatArray
) -> list[Dependence]:
    """Return those whose correlation is not explained by another of the columns, in which rows are more alike.

    For example rows with the same balance are correlated if some of them are of one customer: the column of the customers
    is the one to name. Rows of one hospital may be correlated beyond those of one patient.
    """
    return [
        one
        for one in found
        if not any(
            _explains(columns[other.name], other.design, columns[one.name], one.name, residuals)
            for other in found
            if other.correlation > one.correlation
        )
    ]


def _explains(finer: AnyArray, design: float, column: AnyArray, name: str, residuals: FloatArray) -> bool:
    """Return whether rows with one value of a ``column`` need no warning but for those with one value of ``finer``.

    The standard error of the correlation is ``design`` times as large, the design effect of ``finer``, as of sums of its
    rows.
    """
    codes, counts = _leave_out_segments(*_count_values(column), name)
    inner, _ = _count_values(finer)
    alone = inner < 0
    inner = np.where(alone, len(inner) + np.arange(len(inner)), inner).astype(np.int64)
    known = codes >= 0
    both = codes[known].astype(np.int64) * (2 * len(inner)) + inner[known]
    _, cells, sizes = np.unique(both, return_inverse=True, return_counts=True)
    correlation, sigmas = within_correlation(residuals[known], codes[known], len(counts), cells)
    pairs = (counts * (counts - 1.0)).sum() - (sizes * (sizes - 1.0)).sum()
    return bool(sigmas < MIN_SIGMAS * design or 1 + correlation * pairs / len(codes) < MIN_DESIGN_EFFECT)


def _design_effect(correlation: float, counts: AnyArray) -> float:
    """Return how many times as large the variance of a sum is, given the rows of each value and their correlation."""
    return float(1 + correlation * (counts * (counts - 1.0)).sum() / counts.sum())


def _warn(found: Iterable[Dependence | None], stacklevel: int) -> list[WarningRecord]:
    """Warn of the column with the largest design effect, if any; return the warning."""
    worst = max((one for one in found if one is not None), default=None)
    if worst is None:
        return []
    record = warn(
        ClusterWarning,
        f"rows with the same {worst.name!r} are not independent (correlation of residuals {worst.correlation:.2g}): "
        f"they carry the information of 1/{worst.design:.2g} as many rows, and p-values are too small",
        f'pass cluster="{worst.name}" (--cluster on the command line)',
        column=worst.name,
        stacklevel=stacklevel,
    )
    return [record]


def within_correlation(
    residuals: FloatArray, codes: AnyArray, count: int, cells: AnyArray | None = None
) -> tuple[float, float]:
    """Return how much more correlated rows of one value are than rows of adjacent values, and that in standard errors.

    Residuals have mean 0 and variance 1. Errors that vary smoothly with a number are shared by adjacent values, too. Pairs
    of rows in one of the ``cells``, subsets of the rows of a value, are left out.
    """
    sums, squares, rows = (np.bincount(codes, values, count) for values in (residuals, residuals**2, np.ones(len(codes))))
    pairs, adjacent = float((rows * (rows - 1)).sum()), float((rows[1:] * rows[:-1]).sum())
    products = float((sums**2 - squares).sum())
    if cells is not None:
        sizes, own = np.bincount(cells), np.bincount(cells, residuals)
        pairs -= float((sizes * (sizes - 1.0)).sum())
        products -= float((own**2 - np.bincount(cells, residuals**2)).sum())
    if pairs < 0.5 or not adjacent:  # numbers of pairs may be rounded
        return 0.0, 0.0
    within = products / pairs
    between = float((sums[1:] * sums[:-1]).sum()) / adjacent
    return within - between, (within - between) / math.sqrt(2 / pairs + 1 / adjacent)


def _is_candidate(column: AnyArray, name: str) -> bool:
    """Return whether some rows of a column of codes or integers suggest that it has enough values for an identifier."""
    sample = column[:: max(1, len(column) // SAMPLE_ROWS)]
    if column.dtype.kind == "f":
        sample = sample[~np.isnan(sample)]
        if (sample != np.floor(sample)).any():
            return False
    return len(np.unique(sample)) >= (MIN_NAMED if IDENTIFIER_NAME.search(name) else MIN_SAMPLED)


def _has_many_fractions(column: AnyArray) -> bool:
    """Return whether some rows of a numeric column have many values that are not integers."""
    sample = column[:: max(1, len(column) // SAMPLE_ROWS)]
    return len(np.unique(sample[sample != np.floor(sample)])) >= MIN_IDENTIFIERS / 2


def _count_values(column: AnyArray) -> tuple[Int32Array, AnyArray]:
    """Return the position of each row's value among the sorted distinct values (-1 if missing), and rows per value."""
    missing = column < 0 if column.dtype.kind == "i" else np.isnan(column) | (column != np.floor(column))
    codes = np.full(len(column), -1, np.int32)
    if missing.mean() > MAX_MISSING:
        return codes, np.zeros(0)
    values = column[~missing]
    low, high = values.min(), values.max()
    if high - low > 4 * len(values) + 1000:
        _, codes[~missing], counts = np.unique(values, return_inverse=True, return_counts=True)
        return codes, counts
    offset = (values - low).astype(np.int64)  # in a small range, counting is faster than sorting
    counts = np.bincount(offset)
    codes[~missing] = (np.cumsum(counts > 0) - 1)[offset]
    return codes, counts[counts > 0]


def _read_others(source: ColumnSource, keys: list[object], table: Table) -> dict[str, AnyArray]:
    """Return the columns ``keys`` that are candidates, as numbers or codes; columns that cannot be read are left out."""
    columns = {}
    for key in keys:
        try:
            raw = source.fetch(key)
        except TrueupError:
            continue
        column = raw.codes_or_values if table.kept is None else raw.codes_or_values[table.kept]
        if raw.kind in ("number", "text") and _is_candidate(column, source.label(key)):
            columns[source.label(key)] = column
    return columns


def _standardise(y: FloatArray, p: FloatArray) -> FloatArray:
    """Return residuals with mean 0 within bins of the score, and variance 1; 0 in bins where all outcomes are equal.

    There, residuals vary by the scores alone, which rows of one value may share.
    """
    edges = np.quantile(p[:: max(1, len(p) // SAMPLE_ROWS)], np.arange(1, SCORE_BINS) / SCORE_BINS)
    bins = np.empty(len(p), np.int32)
    digitize(p, edges, bins)
    rows = np.maximum(np.bincount(bins, minlength=SCORE_BINS), 1)
    residual = y - p
    residual -= (np.bincount(bins, residual, SCORE_BINS) / rows)[bins]
    deviation = np.sqrt(np.bincount(bins, residual**2, SCORE_BINS) / rows)
    first = np.empty(SCORE_BINS)
    first[bins] = y  # some outcome of each bin
    deviation[np.bincount(bins, y != first[bins], SCORE_BINS) == 0] = 0.0
    return np.divide(residual, deviation[bins], out=np.zeros(len(residual)), where=deviation[bins] > 0)
