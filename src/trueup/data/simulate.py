"""Populations with a known truth, for demonstrations, tests and power studies.

Every row has a true probability; its outcome is drawn from it, and its prediction is that probability, wrong where an
error was planted. A planted error (`Shift`) of +1 logit means that in its segment the logit of the truth is the logit
of the prediction plus 1: the outcome is more frequent there than predicted. With the same seed the truth is the same with
and without errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_fraction, check_integer, check_number
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray

__all__ = ["CLICKS_SHIFTS", "LENDING_SHIFTS", "Shift", "clicks", "lending", "population"]

GOLDEN_RATIO = 0.6180339887498949  # its multiples, modulo 1, fill [0, 1) evenly and in no order
MAX_DECIMALS = 15  # of a float64
STREAM = int.from_bytes(b"people", "big")


@dataclass(frozen=True)
class Shift:
    """An error planted in one segment.

    Parameters
    ----------
    where : mapping of str to object
        The segment, by column: a value, a pair ``(low, high)`` for numbers or dates in [low, high), or None for the rows
        in which the column is missing. An empty mapping stands for all rows.
    logit : float
        The logit of the truth minus the logit of the prediction in the segment. Where segments overlap, shifts add.

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
        check_number("logit", self.logit)
        for name, wanted in self.where.items():
            if isinstance(wanted, tuple) and len(wanted) != 2:
                raise ArgumentError(f"a range of column {name!r} must be a pair (low, high); got {wanted!r}")

    def __repr__(self) -> str:
        conditions = (f"{k}={v}" if not isinstance(v, tuple) else f"{v[0]}<={k}<{v[1]}" for k, v in self.where.items())
        return f"<Shift of {self.logit:+g} logit where {' & '.join(conditions) or 'anything'}>"

    def __reduce__(self) -> tuple[type[Shift], tuple[dict[str, object], float]]:
        return Shift, (dict(self.where), self.logit)  # a read-only mapping cannot be pickled itself

    def rows(self, columns: Mapping[str, Any]) -> BoolArray:
        """Return a mask of the rows in the segment; ``columns`` must contain all columns of ``where``, at least one."""
        if unknown := [name for name in self.where if name not in columns]:
            raise ArgumentError(
                f"a shift names the column {unknown[0]!r}, which does not exist",
                hint=f"the columns are {', '.join(columns)}",
            )
        mask = np.ones(len(next(iter(columns.values()))), bool)
        for name, wanted in self.where.items():
            mask &= _matches(np.asarray(columns[name]), wanted, name)
        return mask


def _matches(column: AnyArray, wanted: object, name: str) -> BoolArray:
    """Return a mask of the values that are the wanted one, lie in the wanted range, or are missing if None is wanted."""
    text = column.dtype.kind in "OU"
    if wanted is None:
        # NaN and NaT differ from themselves.
        return np.equal(column.astype(object), np.array(None)) if text else np.asarray(column != column)
    low, high = wanted if isinstance(wanted, tuple) else (wanted, wanted)
    if column.dtype.kind == "M":
        low, high = np.datetime64(low), np.datetime64(high)
    elif isinstance(low, str) != text or (text and isinstance(wanted, tuple)):
        raise ArgumentError(
            f"column {name!r} contains {'texts' if text else 'numbers'}, which cannot be compared to {wanted!r} of a shift",
            hint="a text is compared to a text; numbers and dates to a value or a pair (low, high)",
        )
    return np.asarray((column >= low) & (column < high) if isinstance(wanted, tuple) else column == low)


LENDING_SHIFTS: tuple[Shift, ...] = (
    Shift({"region": "harbour"}, 0.6),
    Shift({"product": "card", "employment": "self-employed"}, 1.0),
    Shift({"age": (18, 24)}, -0.5),
    Shift({"opened": (np.datetime64("2024-07-01"), np.datetime64("2025-01-01"))}, 0.5),
)
"""Errors planted in `lending`; the last is a drift in the most recent half year."""

CLICKS_SHIFTS: tuple[Shift, ...] = (
    Shift({"country": "BR", "device": "tv"}, 1.8),
    Shift({"ad_format": "interstitial"}, -0.7),
    Shift({"device": "tablet", "ad_format": "native"}, 1.0),
    Shift({"hour": (1, 5)}, 0.6),
)
"""Errors planted in `clicks`."""

LENDING_SLOPE = 1.15  # a slope above 1 is overconfidence: low scores are too low, high ones too high
CLICKS_SLOPE = 1.1


class _Levels(NamedTuple):
    """A categorical column: level names, shares ``rank ** -tail``, and effects on the logit of at most ``effect``."""

    names: str  # separated by blanks
    tail: float
    effect: float

    def draw(self, uniform: FloatArray) -> tuple[AnyArray, FloatArray]:
        """Return level and effect of each row for ``uniform`` draws; the effect depends on the rank of the level only."""
        names = np.array(self.names.split())
        ranks = np.arange(1.0, len(names) + 1)
        edges = np.cumsum(ranks**-self.tail)
        codes = np.searchsorted(edges[:-1] / edges[-1], uniform, side="right")
        return names[codes], (self.effect * (2 * (ranks * GOLDEN_RATIO % 1) - 1))[codes]


REGION = _Levels("capital north harbour valley south lakes east hills west plains border islands", 0.6, 0.5)
PRODUCT = _Levels("personal home card car student", 0.6, 0.4)
EMPLOYMENT = _Levels("salaried retired self-employed student part-time unemployed", 0.8, 0.5)
COUNTRY = _Levels("US IN BR DE MX GB FR ID JP IT ES CA TR PL NL AU AR CO KR SE TH CL PT RO CZ GR HU FI NZ IE", 0.9, 0.8)
DEVICE = _Levels("phone desktop tv tablet console", 0.9, 0.6)
BROWSER = _Levels("chrome safari webview firefox edge samsung opera other", 1.1, 0.2)
AD_FORMAT = _Levels("native banner interstitial video carousel text", 0.6, 0.5)


def lending(n: int = 20_000, seed: int = 0, *, calibrated: bool = False) -> dict[str, AnyArray]:
    """Simulate loans, of which about 8% default.

    Parameters
    ----------
    n, seed : int
        The number of rows, and the random seed.
    calibrated : bool
        If true, the prediction is the truth. Otherwise it is overconfident (`LENDING_SLOPE` on the logit scale, around
        the overall rate), with `LENDING_SHIFTS` in addition; truth and outcomes are the same.

    Returns
    -------
    dict of str to ndarray of shape (n,)
        Texts: region (12 levels), product (5), employment (6; None in 4% of the rows). Numbers: age (years), income
        (per month; NaN in 6% of the rows), term (12 to 72 months). Dates: opened (2022 to 2024). Then prediction,
        outcome (0 or 1, int8) and truth, the probability that the outcome was drawn with.

    Examples
    --------
    >>> from trueup.data import simulate
    >>> loans = simulate.lending(1_000)
    >>> list(loans)[-3:], float(loans["truth"].mean().round(6))
    (['prediction', 'outcome', 'truth'], 0.08)
    """
    uniform, normal = _draw(n, seed, uniforms=9, normals=2)
    region, region_effect = REGION.draw(uniform[0])
    product, product_effect = PRODUCT.draw(uniform[1])
    employment, employment_effect = EMPLOYMENT.draw(uniform[2])
    age = np.floor(18 + 60 * uniform[3] ** 1.3)
    log_income = 0.45 * normal[0] - 0.0004 * (age - 48) ** 2
    term = 12 + 12 * (6 * uniform[4]).astype(np.int64)
    columns = {
        "region": region,
        "product": product,
        "employment": np.where(uniform[5] < 0.04, np.array(None), employment.astype(object)),
        "age": age,
        "income": np.where(uniform[6] < 0.06, np.nan, np.round(2_400 * np.exp(log_income), -1)),
        "term": term,
        "opened": np.datetime64("2022-01-01") + (1096 * uniform[7]).astype(np.int64),
    }
    # Missing values still have an effect: that of an unknown income is the effect of the income.
    logit_offset = region_effect + product_effect + employment_effect
    logit_offset += -0.6 * log_income - 0.015 * (age - 40) + 0.008 * (term - 36) + 0.6 * normal[1]
    shifts, slope = ((), 1.0) if calibrated else (LENDING_SHIFTS, LENDING_SLOPE)
    return _assemble(columns, logit_offset, uniform[8], prevalence=0.08, shifts=shifts, slope=slope)


def clicks(n: int = 50_000, seed: int = 0, *, calibrated: bool = False) -> dict[str, AnyArray]:
    """Simulate advertisements, of which about 2% are clicked.

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
    country, country_effect = COUNTRY.draw(uniform[0])
    device, device_effect = DEVICE.draw(uniform[1])
    browser, browser_effect = BROWSER.draw(uniform[2])
    ad_format, ad_format_effect = AD_FORMAT.draw(uniform[3])
    traffic = np.cumsum(1 + 0.5 * np.cos((np.arange(24) - 20) * np.pi / 12))  # highest at eight in the evening
    hour = np.searchsorted(traffic[:-1] / traffic[-1], uniform[4], side="right")
    user_age = np.floor(13 + 62 * uniform[5] ** 1.5)
    slot = 1 + (8 * uniform[7] ** 1.5).astype(np.int64)
    columns = {
        "country": country,
        "device": device,
        "browser": browser,
        "ad_format": ad_format,
        "hour": hour,
        "user_age": np.where(uniform[6] < 0.15, np.nan, user_age),
        "slot": slot,
    }
    logit_offset = country_effect + device_effect + browser_effect
    logit_offset += ad_format_effect - 0.1 * slot - 0.01 * (user_age - 35) + 0.5 * normal[0]
    shifts, slope = ((), 1.0) if calibrated else (CLICKS_SHIFTS, CLICKS_SLOPE)
    return _assemble(columns, logit_offset, uniform[8], prevalence=0.02, shifts=shifts, slope=slope)


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
    """Simulate a population with given columns and planted errors.

    Parameters
    ----------
    n, seed : int
        The number of rows, and the random seed.
    levels : sequence of int
        Number of levels of each categorical column. Column c0 has the texts c0_0, c0_1, ...; the share of a level
        falls as one over its rank.
    numeric : int
        Number of standard normal columns x0, x1, ...
    prevalence : float
        Mean of the truth over these rows.
    spread : float
        Standard deviation of the part of the logit of the truth that no column explains.
    shifts : sequence of Shift
        Planted errors; elsewhere the prediction is exactly the truth.
    decimals : int, optional
        Decimals to which the prediction is rounded (and kept one step away from 0 and 1), for scores with ties. Truth
        and outcomes are then derived from the rounded prediction, so that rounding adds no error; the mean of the truth
        is only approximately ``prevalence``.

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
    check_integer("numeric", numeric, 0)
    check_fraction("prevalence", prevalence)
    check_number("spread", spread, 0)
    check_integer("decimals", decimals, 1, MAX_DECIMALS, optional=True)
    _check_levels(levels, shifts)
    uniform, normal = _draw(n, seed, uniforms=len(levels) + 1, normals=numeric + 1)
    logit_offset = spread * normal[numeric]
    columns: dict[str, AnyArray] = {}
    for index, count in enumerate(levels):
        column = _Levels(" ".join(f"c{index}_{level}" for level in range(count)), 1.0, 0.8)
        columns[f"c{index}"], effect = column.draw(uniform[index])
        logit_offset += effect
    for index in range(numeric):
        columns[f"x{index}"] = normal[index]
        logit_offset += 0.5 * normal[index]
    return _assemble(columns, logit_offset, uniform[-1], prevalence=prevalence, shifts=shifts, decimals=decimals)


def _draw(n: int, seed: int, *, uniforms: int, normals: int) -> tuple[FloatArray, FloatArray]:
    """Draw two arrays of random numbers, (uniforms, n) in [0, 1) and (normals, n) standard normal."""
    check_integer("n", n, 1)
    check_integer("seed", seed, 0)
    # A stream of its own: code that splits the rows with the same seed must not reuse these draws.
    rng = np.random.default_rng([seed, STREAM])
    return rng.random((uniforms, n)), rng.standard_normal((normals, n))


def _assemble(
    columns: dict[str, AnyArray],
    logit_offset: FloatArray,
    uniform: FloatArray,
    *,
    prevalence: float,
    shifts: Sequence[Shift],
    slope: float = 1.0,
    decimals: int | None = None,
) -> dict[str, AnyArray]:
    """Add prediction, outcome and truth to the columns; the logit of the truth is ``logit_offset`` plus an intercept."""
    logit = logit_offset + _intercept(logit_offset, prevalence)
    truth = _expit(logit)
    planted = np.zeros(len(logit_offset))
    for shift in shifts:
        planted[shift.rows(columns or {"": logit_offset})] += shift.logit
    # With slope 1 the stretch adds 0.0 to the logit, and a prediction without shift is exactly the truth.
    stretch = (slope - 1) * (logit - np.log(prevalence / (1 - prevalence)))
    prediction = _expit(logit + stretch - planted)
    if decimals is not None:
        step = 10.0**-decimals
        prediction = np.clip(np.round(prediction, decimals), step, 1 - step)
        shifted = _expit(np.log(prediction) - np.log1p(-prediction) + planted)
        truth = np.where(planted == 0, prediction, shifted)
    return {**columns, "prediction": prediction, "outcome": (uniform < truth).astype(np.int8), "truth": truth}


def _expit(logit: FloatArray) -> FloatArray:
    """Convert logits to probabilities, without overflow and precise near 0."""
    probability: FloatArray = np.exp(-np.logaddexp(0.0, -logit))
    return probability


def _intercept(logit_offset: FloatArray, prevalence: float) -> float:
    """Solve mean(expit(logit_offset + b)) = prevalence for b: Newton steps, or bisection if they leave the bracket."""
    base = float(np.log(prevalence / (1 - prevalence)))
    low, high = base - float(logit_offset.max()), base - float(logit_offset.min())
    b = (low + high) / 2
    for _ in range(100):
        p = _expit(logit_offset + b)
        gap = float(p.mean()) - prevalence
        if abs(gap) <= 1e-13 * prevalence or high - low <= 1e-15 * abs(b):
            break
        low, high = (low, b) if gap > 0 else (b, high)
        slope = float((p * (1 - p)).mean())
        step = b - gap / slope if slope > 0 else low
        b = step if low < step < high else (low + high) / 2
    return b


def _check_levels(levels: Sequence[int], shifts: Sequence[Shift]) -> None:
    if not isinstance(levels, list | tuple):
        raise ArgumentError(f"levels must be a list of integers, one per column; got {levels!r}", parameter="levels")
    for index, count in enumerate(levels):
        check_integer(f"levels[{index}]", count, 1)
    if not isinstance(shifts, list | tuple) or not all(isinstance(shift, Shift) for shift in shifts):
        raise ArgumentError(f"shifts must be a list of Shift; got {shifts!r}", parameter="shifts")
    # A level that does not exist would silently plant nothing; Shift.rows raises for a column that does not exist.
    names = {f"c{i}": [f"c{i}_{level}" for level in range(count)] for i, count in enumerate(levels)}
    for name, wanted in ((name, wanted) for shift in shifts for name, wanted in shift.where.items()):
        if wanted not in names.get(name, [wanted]):
            raise ArgumentError(
                f"a shift names the level {wanted!r} of column {name!r}, which has no such level",
                hint=f"its levels are {names[name][0]} to {names[name][-1]}",
            )
