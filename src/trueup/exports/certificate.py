"""Parity of an export with its model, on rows at and beside every cut, missing, unseen, extreme and random ones."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.floors import TINY
from trueup.data.columns import days_of
from trueup.data.values import MAX_VALUE
from trueup.errors import ExportError, TrueupWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray
    from trueup.calibrators.model import Model
    from trueup.exports.program import Program

    Runner = Callable[[Mapping[str, AnyArray]], FloatArray]

MIN_ROWS = 2_000
# Largest differences: the logarithms and exponentials of targets differ in their last bit. Where a probability is first
# computed from logits, or is a function of several logarithms, the correction multiplies this error.
REAL, ONE_PROBABILITY, SEVERAL_LOGARITHMS = 0.0, 4e-16, 1e-13
EXTREMES = (0.0, -0.0, 1.0, -1.0, 1e-300, -1e300, 1e300, 2.0**53, np.inf, -np.inf, np.nan)
EDGE_SCORES = (0.0, 1.0, 5e-324, 1e-300, 1e-16, 1e-6, 0.5, 1 - 1e-6, 1 - 2.0**-53)
INVALID_SCORES = (np.nan, np.inf, -np.inf, -1e-9, 1.0 + 1e-9, 2e150)
UNSEEN = "a level that no row of the training data has"
MICROSECONDS = 86_400e6  # of a day
INVALID_SHARE = 0.05  # of rows
SHOWN = 3  # rows in the message of an export that is not exact


@dataclass(frozen=True)
class Certificate:
    """How an export compares with its model.

    Attributes
    ----------
    target : str
        "onnx", "sql" or "c".
    checked_with : str
        What ran the export, with its version.
    rows : int
        At and one unit of the last place beside every cut, missing, unseen, extreme, invalid and random ones.
    cuts : int
        Distinct numbers at which scores may change.
    exact_values : int
        Sums of tables and trees, and other values without logarithms, that were compared in each row; all are identical.
    largest_difference : float
        Of a corrected score from that of the model.
    notes : tuple of str
        Limits of the comparison.
    """

    target: str
    checked_with: str
    rows: int
    cuts: int
    exact_values: int
    largest_difference: float
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return asdict(self) | {"notes": list(self.notes)}

    def to_json(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def __repr__(self) -> str:
        sums = f", {self.exact_values} sums and counts per row identical" if self.exact_values else ""
        return (
            f"{self.target}: largest difference {self.largest_difference:.2g} from the model on {self.rows:,} rows at and "
            f"beside {self.cuts:,} cuts, missing, unseen, extreme and random{sums}; checked with {self.checked_with}"
        )


def certify(
    model: Model, program: Program, target: str, checked_with: str, runners: Sequence[Runner], notes: Sequence[str] = ()
) -> Certificate:
    """Compare what ``runners`` return for test rows with the model; raise `ExportError` unless they agree.

    A runner takes columns, in which dates are datetimes, and returns the scores of rows; it may return the values of
    ``program.exact`` after them.
    """
    columns = check_rows(program)
    rows = len(next(iter(columns.values()))) if columns else 0
    width, limit = program.result.width, largest_allowed(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrueupWarning)
        expected = model.predict(columns, on_error="nan").reshape(rows, width)
    given = {name: days_of(column) if column.dtype.kind == "M" else column for name, column in columns.items()}
    exact = exact_values(program, given)
    valid: BoolArray = np.asarray(~np.isnan(expected).any(axis=1, keepdims=True))
    largest = 0.0
    for runner in runners:
        found = runner(columns)
        scores, sums = found[:, :width], found[:, width:]
        same = np.isnan(scores) == np.isnan(expected)
        _require(same, "are missing in one of both", columns, scores, expected)
        difference = np.abs(np.where(valid, scores, 0.0) - np.where(valid, expected, 0.0))
        largest = max(largest, float(difference.max(initial=0.0)))
        _require(difference <= limit, f"differ by more than {limit:g}", columns, scores, expected)
        if sums.size:
            same = np.where(valid, sums, 0.0) == np.where(valid, exact, 0.0)
            _require(same, "have other sums of tables or trees", columns, sums, exact)
    cuts = sum(map(len, (*program.score_cuts, *program.number_cuts.values())))
    return Certificate(target, checked_with, rows, cuts, exact.shape[1], largest, (*program.notes, *notes))


def largest_allowed(program: Program) -> float:
    """Return the largest difference from the scores of the model that an export may have."""
    if program.schema.task == "regression":
        return REAL
    return ONE_PROBABILITY if program.schema.task == "binary" and not program.schema.logits else SEVERAL_LOGARITHMS


def _require(
    holds: BoolArray, fault: str, columns: Mapping[str, AnyArray], found: FloatArray, expected: FloatArray
) -> None:
    """Raise ExportError, with the first rows, unless ``holds`` is true of all values."""
    wrong = np.flatnonzero(~holds.all(axis=1))
    if not len(wrong):
        return
    shown = "; ".join(
        f"{ {name: column[row] for name, column in columns.items()} } gives {found[row]} instead of {expected[row]}"
        for row in wrong[:SHOWN].tolist()
    )
    raise ExportError(
        f"the export is not exact: {len(wrong):,} of {len(found):,} test rows {fault}: {shown}"[:2000],
        hint="nothing was written; please report it, with the model file",
    )


def exact_values(program: Program, columns: Mapping[str, AnyArray]) -> FloatArray:
    """Return ``program.exact`` of rows (dates as days), by their definition in NumPy, shape (rows, values)."""
    rows = len(next(iter(columns.values())))
    values = program.evaluate(*program_inputs(program, columns))
    parts = [np.broadcast_to(values[item], (rows, item.width)) for item in program.exact]
    return np.concatenate([np.zeros((rows, 0)), *parts], axis=1)


def program_inputs(program: Program, columns: Mapping[str, AnyArray]) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return rows as the inputs of `Program.evaluate`: scores, numbers, and codes of categories."""
    rows = len(next(iter(columns.values())))

    def stack(names: Sequence[str], dtype: Any) -> Any:
        return np.column_stack([np.zeros((rows, 0), dtype), *(np.asarray(columns[name], dtype) for name in names)])

    codes = np.zeros((rows, len(program.categories)), np.int64)
    for at, (name, levels) in enumerate(program.categories.items()):
        place = {None: 0} | {level: code for code, level in enumerate(levels, start=1)}
        unseen = program.unseen_code(name)
        codes[:, at] = [place.get(text, unseen) for text in columns[name].tolist()]
    return stack(program.schema.prediction, np.float64), stack(program.numbers, np.float64), codes


def check_rows(program: Program, least: int = MIN_ROWS, seed: int = 0) -> dict[str, AnyArray]:
    """Return columns in which every special value of every column occurs, in random combinations."""
    schema, rng = program.schema, np.random.default_rng(seed)
    special: dict[str, AnyArray] = {}
    dates = {feature.name for feature in schema.features if feature.kind == "date"}
    for name in program.numbers:
        special[name] = _beside(program.number_cuts.get(name, np.zeros(0)), EXTREMES)
    for name, levels in program.categories.items():
        special[name] = np.array([*levels, None, UNSEEN, ""], object)
    low, high = (-MAX_VALUE, MAX_VALUE) if schema.task == "regression" or schema.logits else (0.0, 1.0)
    scores = []
    for cuts in program.score_cuts if schema.prediction else ():
        values = _beside(cuts, EDGE_SCORES)
        scores.append(values[(low <= values) & (values <= high)])
    rows = max(least, 2 * sum(map(len, scores)), *(2 * len(values) for values in special.values()), 0)
    columns = {name: _fill(values, rows, rng, name in dates) for name, values in special.items()}
    return columns | _score_columns(program, scores, rows, rng) if schema.prediction else columns


def _beside(cuts: FloatArray, more: Sequence[float]) -> FloatArray:
    """Return cuts, the floats beside them, and further values."""
    return np.concatenate([cuts, np.nextafter(cuts, -np.inf), np.nextafter(cuts, np.inf), np.array(more, np.float64)])


def _fill(values: AnyArray, rows: int, rng: np.random.Generator, is_date: bool) -> AnyArray:  # noqa: FBT001
    """Return ``rows`` values in random order: each special value, then draws of them and of numbers between them."""
    if is_date:  # whole microseconds, within years 1 to 9999
        finite = values[np.isfinite(values) & (np.abs(values) < 700_000)]
        values = np.append((finite * MICROSECONDS).astype("datetime64[us]"), np.datetime64("NaT"))
    more = rng.choice(values, rows - len(values)) if len(values) else np.zeros(rows)
    if values.dtype.kind == "f":
        finite = np.where(np.isfinite(more) & (np.abs(more) < MAX_VALUE), more, 0.0)
        more = np.where(rng.random(len(more)) < 0.5, finite * rng.lognormal(0, 0.5, len(more)), more)
    return rng.permutation(np.concatenate([values, more]))


def _score_columns(
    program: Program, special: Sequence[FloatArray], rows: int, rng: np.random.Generator
) -> dict[str, AnyArray]:
    """Return the columns of scores: special values, random ones, and invalid ones."""
    schema = program.schema
    classes, place = len(schema.prediction), rng.permutation(rows)
    add_up = schema.task == "multiclass" and not schema.logits
    if add_up:
        scores = rng.dirichlet(np.full(classes, 0.7), rows)
    elif schema.task == "binary" and not schema.logits:
        scores = rng.beta(0.5, 2.0, (rows, classes))
    else:
        scores = 8 * rng.standard_normal((rows, classes))
    first = 0
    for c, values in enumerate(special):
        at = place[first : first + len(values)]
        if add_up:  # the other classes share the rest
            rest = np.delete(scores[at], c, axis=1)
            rest *= ((1.0 - values) / np.maximum(rest.sum(axis=1), TINY))[:, None]
            scores[at] = np.insert(rest, c, values, axis=1)
        else:
            scores[at, c] = values
        first += len(values)
    invalid = place[-int(INVALID_SHARE * rows) :]
    scores[invalid, rng.integers(0, max(classes, 1), len(invalid))] = rng.choice(INVALID_SCORES, len(invalid))
    return dict(zip(schema.prediction, scores.T.copy(), strict=True))
