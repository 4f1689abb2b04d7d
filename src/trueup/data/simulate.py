"""Populations with a known truth, for demonstrations, tests and power studies.

Every row has a true probability; its outcome is drawn from it, and its prediction is that probability, wrong where an
error was planted. A planted error (`Shift`) of +1 logit means that in its segment the logit of the truth is the logit
of the prediction plus 1: more happens there than was predicted. A seed gives the same truth with and without errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from trueup._types import AnyArray, BoolArray, FloatArray

__all__ = ["CLICKS_SHIFTS", "LENDING_SHIFTS", "Shift", "clicks", "lending", "population"]

GOLDEN = 0.6180339887498949  # its multiples, less their whole parts, fill [0, 1) evenly and in no order
MAX_DECIMALS = 15  # a double has no more
STREAM = int.from_bytes(b"people", "big")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(np.isfinite(value))


def _check_count(name: str, value: object, least: int, most: int = 2**63) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value <= most:
        limits = f"of at least {least}" if most == 2**63 else f"from {least} to {most}"
        raise ArgumentError(f"{name} must be a whole number {limits}; got {value!r}")


@dataclass(frozen=True)
class Shift:
    """An error planted in one segment.

    Parameters
    ----------
    where : mapping of str to object
        What the rows of the segment have in common, by column: a value, a pair ``(low, high)`` for the numbers or
        dates from low up to but not including high, or None for the rows where the column is missing. An empty
        mapping is every row.
    logit : float
        How far the truth lies above the prediction there, on the logit scale. Where segments overlap, shifts add.

    Examples
    --------
    >>> import numpy as np
    >>> from trueup.data.simulate import Shift
    >>> shift = Shift({"country": "BR", "age": (18, 25)}, 0.5)
    >>> shift
    <Shift of +0.5 logit where country=BR & 18<=age<25>
    >>> shift.rows({"country": np.array(["BR", "BR", "PE"]), "age": np.array([18.0, 25.0, 20.0])})
    array([ True, False, False])
    """

    where: Mapping[str, object]
    logit: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", MappingProxyType(dict(self.where)))
        if not _is_number(self.logit):
            raise ArgumentError(f"the logit of a shift must be a finite number; got {self.logit!r}")
        for name, wanted in self.where.items():
            if isinstance(wanted, tuple) and len(wanted) != 2:
                raise ArgumentError(f"a range of column {name!r} must be a pair (low, high); got {wanted!r}")

    def __repr__(self) -> str:
        parts = (f"{k}={v}" if not isinstance(v, tuple) else f"{v[0]}<={k}<{v[1]}" for k, v in self.where.items())
        return f"<Shift of {self.logit:+g} logit where {' & '.join(parts) or 'anything'}>"

    def __reduce__(self) -> tuple[type[Shift], tuple[dict[str, object], float]]:
        return Shift, (dict(self.where), self.logit)  # a read-only mapping cannot be pickled itself

    def rows(self, columns: Mapping[str, Any]) -> BoolArray:
        """Say which rows are in the segment, given the columns that it names and at least one column."""
        if unknown := [name for name in self.where if name not in columns]:
            raise ArgumentError(
                f"a shift names the column {unknown[0]!r}, which is not there", hint=f"there are {', '.join(columns)}"
            )
        found = np.ones(len(next(iter(columns.values()))), bool)
        for name, wanted in self.where.items():
            found &= _matches(np.asarray(columns[name]), wanted, name)
        return found


def _matches(column: AnyArray, wanted: object, name: str) -> BoolArray:
    """Say which values are the wanted one, lie in the wanted range, or are missing where None is wanted."""
    text = column.dtype.kind in "OU"
    if wanted is None:
        # NaN and NaT differ from themselves.
        return np.equal(column.astype(object), np.array(None)) if text else np.asarray(column != column)
    low, high = wanted if isinstance(wanted, tuple) else (wanted, wanted)
    if column.dtype.kind == "M":
        low, high = np.datetime64(low), np.datetime64(high)
    elif isinstance(low, str) != text or (text and isinstance(wanted, tuple)):
        raise ArgumentError(
            f"column {name!r} holds {'texts' if text else 'numbers'}; a shift cannot ask it for {wanted!r}",
            hint="a text is matched by a text; numbers and dates by one of them or by a pair (low, high)",
        )
    return np.asarray((column >= low) & (column < high) if isinstance(wanted, tuple) else column == low)


LENDING_SHIFTS: tuple[Shift, ...] = (
    Shift({"region": "harbour"}, 0.6),
    Shift({"product": "card", "employment": "self-employed"}, 1.0),
    Shift({"age": (18, 24)}, -0.5),
    Shift({"opened": (np.datetime64("2024-07-01"), np.datetime64("2025-01-01"))}, 0.5),
)
"""The errors planted in `lending`; the last is a drift over the most recent half year."""

CLICKS_SHIFTS: tuple[Shift, ...] = (
    Shift({"country": "BR", "device": "tv"}, 1.8),
    Shift({"ad_format": "interstitial"}, -0.7),
    Shift({"device": "tablet", "ad_format": "native"}, 1.0),
    Shift({"hour": (1, 5)}, 0.6),
)
"""The errors planted in `clicks`."""

LENDING_SLOPE = 1.15  # a slope above 1 is overconfidence: low scores too low, high ones too high
CLICKS_SLOPE = 1.1


class _Levels(NamedTuple):
    """A categorical column: names, shares falling as a power of the rank, effects on the logit of the truth."""

    names: str  # with blanks between
    tail: float
    effect: float

    @property
    def ranks(self) -> FloatArray:
        return np.arange(1.0, len(self.names.split()) + 1)

    def draw(self, uniform: FloatArray) -> NDArray[np.intp]:
        edges = np.cumsum(self.ranks**-self.tail)
        return np.searchsorted(edges[:-1] / edges[-1], uniform, side="right")

    def texts(self, codes: NDArray[np.intp]) -> AnyArray:
        return np.array(self.names.split())[codes]

    def effects(self, codes: NDArray[np.intp]) -> FloatArray:
        """Give each row the effect of its level: fixed by its rank, so that every seed is the same population."""
        return (self.effect * (2 * (self.ranks * GOLDEN % 1) - 1))[codes]


REGION = _Levels("capital north harbour valley south lakes east hills west plains border islands", 0.6, 0.5)
PRODUCT = _Levels("personal home card car student", 0.6, 0.4)
EMPLOYMENT = _Levels("salaried retired self-employed student part-time unemployed", 0.8, 0.5)
COUNTRY = _Levels("US IN BR DE MX GB FR ID JP IT ES CA TR PL NL AU AR CO KR SE TH CL PT RO CZ GR HU FI NZ IE", 0.9, 0.8)
DEVICE = _Levels("phone desktop tv tablet console", 0.9, 0.6)
BROWSER = _Levels("chrome safari webview firefox edge samsung opera other", 1.1, 0.2)
AD_FORMAT = _Levels("native banner interstitial video carousel text", 0.6, 0.5)


def lending(n: int = 20_000, seed: int = 0, *, calibrated: bool = False) -> dict[str, AnyArray]:
    """Simulate loans, some of which default: about 8%.

    Parameters
    ----------
    n, seed : int
        The number of rows, and what fixes them.
    calibrated : bool
        Let the prediction be the truth. Otherwise it is overconfident (`LENDING_SLOPE` on the logit scale, about the
        overall rate) and off by `LENDING_SHIFTS` on top; truth and outcomes stay the same.

    Returns
    -------
    dict of str to ndarray of shape (n,)
        Texts: region (12 levels), product (5), employment (6; None in 4% of the rows). Numbers: age (years), income
        (a month; NaN in 6% of the rows), term (12 to 72 months). Dates: opened (2022 to 2024). Then prediction,
        outcome (0 or 1, int8) and truth, the probability that the outcome was drawn with.

    Examples
    --------
    >>> from trueup.data import simulate
    >>> loans = simulate.lending(1_000)
    >>> list(loans)[-3:], float(loans["truth"].mean().round(6))
    (['prediction', 'outcome', 'truth'], 0.08)
    """
    uniform, normal = _draw(n, seed, uniforms=9, normals=2)
    region, product, employment = REGION.draw(uniform[0]), PRODUCT.draw(uniform[1]), EMPLOYMENT.draw(uniform[2])
    age = np.floor(18 + 60 * uniform[3] ** 1.3)
    richer = 0.45 * normal[0] - 0.0004 * (age - 48) ** 2
    term = 12 + 12 * (6 * uniform[4]).astype(np.int64)
    columns = {
        "region": REGION.texts(region),
        "product": PRODUCT.texts(product),
        "employment": EMPLOYMENT.texts(employment).astype(object),
        "age": age,
        "income": np.where(uniform[6] < 0.06, np.nan, np.round(2_400 * np.exp(richer), -1)),
        "term": term,
        "opened": np.datetime64("2022-01-01") + (1096 * uniform[7]).astype(np.int64),
    }
    columns["employment"][uniform[5] < 0.04] = None
    # What is missing from the columns still acts: the effect of an unknown income is that of the income.
    lean = REGION.effects(region) + PRODUCT.effects(product) + EMPLOYMENT.effects(employment)
    lean += -0.6 * richer - 0.015 * (age - 40) + 0.008 * (term - 36) + 0.6 * normal[1]
    shifts, slope = ((), 1.0) if calibrated else (LENDING_SHIFTS, LENDING_SLOPE)
    return _assemble(columns, lean, uniform[8], prevalence=0.08, shifts=shifts, slope=slope)


def clicks(n: int = 50_000, seed: int = 0, *, calibrated: bool = False) -> dict[str, AnyArray]:
    """Simulate advertisements shown, some of which are clicked: about 2%.

    Parameters
    ----------
    n, seed, calibrated
        As in `lending`; the errors are `CLICKS_SLOPE` and `CLICKS_SHIFTS`.

    Returns
    -------
    dict of str to ndarray of shape (n,)
        Texts: country (30 levels, most of them rare), device (5), browser (8), ad_format (6). Numbers: hour (0 to 23),
        user_age (years; NaN in 15% of the rows), slot (1 to 8). Then prediction, outcome (0 or 1, int8) and truth,
        the probability that the outcome was drawn with.

    Examples
    --------
    >>> from trueup.data import simulate
    >>> shown = simulate.clicks(1_000, calibrated=True)
    >>> bool((shown["prediction"] == shown["truth"]).all())
    True
    """
    uniform, normal = _draw(n, seed, uniforms=9, normals=1)
    country, device = COUNTRY.draw(uniform[0]), DEVICE.draw(uniform[1])
    browser, ad_format = BROWSER.draw(uniform[2]), AD_FORMAT.draw(uniform[3])
    traffic = np.cumsum(1 + 0.5 * np.cos((np.arange(24) - 20) * np.pi / 12))  # highest at eight in the evening
    hour = np.searchsorted(traffic[:-1] / traffic[-1], uniform[4], side="right")
    user_age = np.floor(13 + 62 * uniform[5] ** 1.5)
    slot = 1 + (8 * uniform[7] ** 1.5).astype(np.int64)
    columns = {
        "country": COUNTRY.texts(country),
        "device": DEVICE.texts(device),
        "browser": BROWSER.texts(browser),
        "ad_format": AD_FORMAT.texts(ad_format),
        "hour": hour,
        "user_age": np.where(uniform[6] < 0.15, np.nan, user_age),
        "slot": slot,
    }
    lean = COUNTRY.effects(country) + DEVICE.effects(device) + BROWSER.effects(browser)
    lean += AD_FORMAT.effects(ad_format) - 0.1 * slot - 0.01 * (user_age - 35) + 0.5 * normal[0]
    shifts, slope = ((), 1.0) if calibrated else (CLICKS_SHIFTS, CLICKS_SLOPE)
    return _assemble(columns, lean, uniform[8], prevalence=0.02, shifts=shifts, slope=slope)


def population(
    n: int,
    seed: int = 0,
    *,
    levels: Sequence[int] = (4, 4),
    numeric: int = 0,
    prevalence: float = 0.2,
    spread: float = 1.0,
    shifts: Sequence[Shift] = (),
    decimals: int | None = None,
) -> dict[str, AnyArray]:
    """Simulate a population of any shape, with errors where they are asked for.

    Parameters
    ----------
    n, seed : int
        The number of rows, and what fixes them.
    levels : sequence of int
        Number of levels of each categorical column. Column c0 has the texts c0_0, c0_1, ...; the share of a level
        falls as one over its rank.
    numeric : int
        Number of standard normal columns x0, x1, ...
    prevalence : float
        Mean of the truth, over these very rows.
    spread : float
        Standard deviation of the part of the logit of the truth that no column explains.
    shifts : sequence of Shift
        Where the prediction is wrong; elsewhere it is the truth, bit for bit.
    decimals : int, optional
        Round the prediction to so many places (and keep it one step away from 0 and 1), for scores with ties. Truth
        and outcomes then follow from the rounded prediction, so that rounding adds no error; the mean of the truth is
        ``prevalence`` only as far as rounding and the shifts let it.

    Returns
    -------
    dict of str to ndarray of shape (n,)
        The columns, then prediction, outcome (0 or 1, int8) and truth.

    Examples
    --------
    >>> from trueup.data.simulate import Shift, population
    >>> rows = population(1_000, levels=(3,), shifts=[Shift({"c0": "c0_2"}, 1.0)])
    >>> list(rows)
    ['c0', 'prediction', 'outcome', 'truth']
    >>> wrong = rows["prediction"] != rows["truth"]
    >>> bool((wrong == (rows["c0"] == "c0_2")).all())
    True
    """
    _check_shape(levels, numeric, shifts)
    _check_rates(prevalence, spread, decimals)
    uniform, normal = _draw(n, seed, uniforms=len(levels) + 1, normals=numeric + 1)
    lean = spread * normal[numeric]
    columns: dict[str, AnyArray] = {}
    for at, count in enumerate(levels):
        column = _Levels(" ".join(f"c{at}_{level}" for level in range(count)), 1.0, 0.8)
        codes = column.draw(uniform[at])
        columns[f"c{at}"] = column.texts(codes)
        lean += column.effects(codes)
    for at in range(numeric):
        columns[f"x{at}"] = normal[at]
        lean += 0.5 * normal[at]
    return _assemble(columns, lean, uniform[-1], prevalence=prevalence, shifts=shifts, decimals=decimals)


def _draw(n: int, seed: int, *, uniforms: int, normals: int) -> tuple[FloatArray, FloatArray]:
    """Draw all the chance there is, in two calls: uniform numbers in [0, 1) and standard normal ones."""
    _check_count("n", n, 1)
    _check_count("seed", seed, 0)
    # A stream apart: whoever splits the rows with the same seed must not reuse these draws.
    rng = np.random.default_rng([seed, STREAM])
    return rng.random((uniforms, n)), rng.standard_normal((normals, n))


def _assemble(
    columns: dict[str, AnyArray],
    lean: FloatArray,
    uniform: FloatArray,
    *,
    prevalence: float,
    shifts: Sequence[Shift],
    slope: float = 1.0,
    decimals: int | None = None,
) -> dict[str, AnyArray]:
    """Add prediction, outcome and truth to the columns; ``lean`` is the logit of the truth but for its intercept."""
    logit = lean + _intercept(lean, prevalence)
    truth = _expit(logit)
    planted = np.zeros(len(lean))
    for shift in shifts:
        planted[shift.rows(columns or {"": lean})] += shift.logit
    # With slope 1 the stretch adds 0.0 to the logit, and an unshifted prediction is the truth bit for bit.
    stretch = (slope - 1) * (logit - np.log(prevalence / (1 - prevalence)))
    prediction = _expit(logit + stretch - planted)
    if decimals is not None:
        step = 10.0**-decimals
        prediction = np.clip(np.round(prediction, decimals), step, 1 - step)
        moved = _expit(np.log(prediction) - np.log1p(-prediction) + planted)
        truth = np.where(planted == 0, prediction, moved)
    return {**columns, "prediction": prediction, "outcome": (uniform < truth).astype(np.int8), "truth": truth}


def _expit(logit: FloatArray) -> FloatArray:
    """Turn logits into probabilities, without overflow and precise near 0."""
    out: FloatArray = np.exp(-np.logaddexp(0.0, -logit))
    return out


def _intercept(lean: FloatArray, prevalence: float) -> float:
    """Solve mean(expit(lean + b)) = prevalence for b: Newton's steps, or halving where they leave the bracket."""
    base = float(np.log(prevalence / (1 - prevalence)))
    low, high = base - float(lean.max()), base - float(lean.min())
    b = (low + high) / 2
    for _ in range(100):
        p = _expit(lean + b)
        gap = float(p.mean()) - prevalence
        if abs(gap) <= 1e-13 * prevalence or high - low <= 1e-15 * abs(b):
            break
        low, high = (low, b) if gap > 0 else (b, high)
        slope = float((p * (1 - p)).mean())
        step = b - gap / slope if slope > 0 else low
        b = step if low < step < high else (low + high) / 2
    return b


def _check_shape(levels: Sequence[int], numeric: int, shifts: Sequence[Shift]) -> None:
    _check_count("numeric", numeric, 0)
    if not isinstance(levels, list | tuple):
        raise ArgumentError(f"levels must be a list of whole numbers, one a column; got {levels!r}")
    for at, count in enumerate(levels):
        _check_count(f"levels[{at}]", count, 1)
    if not isinstance(shifts, list | tuple) or not all(isinstance(shift, Shift) for shift in shifts):
        raise ArgumentError(f"shifts must be a list of Shift; got {shifts!r}")
    # A level that is not there would plant nothing, silently; a column that is not there is refused by Shift.rows.
    names = {f"c{at}": [f"c{at}_{level}" for level in range(count)] for at, count in enumerate(levels)}
    for name, wanted in ((name, wanted) for shift in shifts for name, wanted in shift.where.items()):
        if wanted not in names.get(name, [wanted]):
            raise ArgumentError(
                f"a shift names the level {wanted!r} of column {name!r}, which has no such level",
                hint=f"its levels are {names[name][0]} to {names[name][-1]}",
            )


def _check_rates(prevalence: float, spread: float, decimals: int | None) -> None:
    if not _is_number(prevalence) or not 0 < prevalence < 1:
        raise ArgumentError(f"prevalence must lie between 0 and 1, both excluded; got {prevalence!r}")
    if not _is_number(spread) or spread < 0:
        raise ArgumentError(f"spread must be a finite number of at least 0; got {spread!r}")
    _check_count("decimals", 1 if decimals is None else decimals, 1, MAX_DECIMALS)
