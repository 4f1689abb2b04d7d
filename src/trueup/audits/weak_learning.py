"""weak_learning(): whether a class of functions still improves on the mean outcome of some level of the score.

Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as boosting for regression". A class H satisfies
the gamma-weak learning condition if on every set of rows on which the Bayes predictor has a squared error more than gamma
below that of the best constant, some h of H has one too (definition 4.4); relative to a class C, if some c of C has one
(6.1). Calibration on H is near Bayes optimality, or as good as C, if and only if the condition holds on the levels of the
score (theorems 5.2 and 6.2). The condition on all sets cannot be tested; on the levels of a score it can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_integer, check_number
from trueup.audits.swap_regret import (
    MAX_INTEGER,
    MIN_ROWS_PER_SIDE,
    check_learner,
    check_settings,
    divide,
    level_names,
    make_search,
    mean_pvalue,
    weighted_mean,
)
from trueup.audits.text import number
from trueup.data.columns import frame_like
from trueup.data.frame import read
from trueup.kernels.threads import Workers
from trueup.metrics import inference
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trueup._types import BoolArray, FloatArray
    from trueup.audits.witness import LevelRows
    from trueup.data.table import Table


@dataclass(frozen=True)
class Advantage(Result):
    """The advantage of a function over the mean outcome of the held-out rows of one level.

    Attributes
    ----------
    level : str
        The range of scores.
    rows, rows_held : int
        Rows of the level, and those held out.
    gain, error : float
        Mean squared error of the best constant less that of the fitted function, on held-out rows, and its standard error;
        NaN if the level was not tested.
    p_value, p_adjusted : float
        Of the hypothesis that no multiple of the function gains more than gamma; adjusted over all levels (Holm).
    """

    level: str
    rows: int
    rows_held: int
    gain: float
    error: float
    p_value: float
    p_adjusted: float

    @property
    def tested(self) -> bool:
        """Whether the level had enough rows."""
        return not math.isnan(self.p_value)


@dataclass(frozen=True, eq=False, repr=False)
class WeakLearning(Result):
    """The result of `weak_learning`.

    Attributes
    ----------
    levels : tuple of Advantage
        One per level of the score, ascending: the advantage of the class.
    reference : tuple of Advantage
        That of the class ``relative_to``; empty without one.
    gamma, alpha : float
    learner, relative_to : str
        Names of the two classes.
    """

    levels: tuple[Advantage, ...]
    reference: tuple[Advantage, ...]
    gamma: float
    alpha: float
    learner: str
    relative_to: str
    derived = ("verdict",)

    @property
    def advantage(self) -> tuple[str, ...]:
        """The levels on which the class has an advantage of more than gamma."""
        return tuple(level.level for level in self.levels if level.p_adjusted <= self.alpha)

    @property
    def violated(self) -> tuple[str, ...]:
        """The levels on which the other class has an advantage that was found, and this class none that was."""
        return tuple(
            other.level
            for own, other in zip(self.levels, self.reference, strict=False)
            if other.p_adjusted <= self.alpha < own.p_adjusted
        )

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        tested = sum(level.tested for level in self.levels)
        if not tested:
            return "nothing could be tested: no level has enough training rows and held-out rows"
        above = f" of more than {number(self.gamma, 3)}" if self.gamma else ""
        found = f"{self.learner} have an advantage{above} on {len(self.advantage)} of {tested} levels"
        if not self.reference:
            rest = (
                "more rounds would help there" if self.advantage else "none was found: they are exhausted as weak learners"
            )
            return f"{found}: {rest}" if self.advantage else rest
        if self.violated:
            where = "; ".join(self.violated[:3])
            return f"{found}; weak learning relative to {self.relative_to} fails at scores {where}"
        return f"{found}; no level where {self.relative_to} have one and they have none"

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per level, as a frame of the library of ``like``, or as a dict of arrays."""
        names = tuple(Advantage.__dataclass_fields__)
        columns = {name: np.array([getattr(level, name) for level in self.levels]) for name in names}
        columns["level"] = columns["level"].astype(object)
        for name in ("gain", "error", "p_value", "p_adjusted") if self.reference else ():
            columns[f"reference_{name}"] = np.array([getattr(level, name) for level in self.reference])
        return frame_like(columns, like)

    def __repr__(self) -> str:
        return f"<WeakLearning {self.verdict}>"


def weak_learning(
    data: Any,
    *,
    outcome: Any = None,
    prediction: Any = None,
    features: Sequence[Hashable] | Hashable | None = None,
    learner: Any = "tree",
    relative_to: Any = None,
    gamma: float = 0.0,
    depth: int = 1,
    levels: int = 10,
    held_out: float = 0.5,
    weight: Any = None,
    cluster: Any = None,
    task: str = "auto",
    alpha: float = 0.05,
    categorical: Sequence[Hashable] | Hashable = (),
    unlabelled: str = "error",
    min_rows: int = 100,
    bins: int = 64,
    random_state: int = 0,
    threads: int | None = None,
) -> WeakLearning:
    """Test on held-out rows whether a class of functions improves on the best constant, level by level of the score.

    Parameters
    ----------
    data, outcome, prediction, features, levels, held_out, weight, cluster, task, categorical, unlabelled, min_rows, bins
        As for `swap_regret`. ``prediction`` is the current model, whose levels are examined.
    learner : {"tree", "linear"}, regressor or callable
        The class H, as for `swap_regret`: the weak learners of a boosting algorithm.
    relative_to : {"tree", "linear"}, regressor or callable, optional
        A richer class C: levels on which it has an advantage and H has none violate the condition of definition 6.1.
    gamma : float
        The advantage that is required.
    depth : int
        Depth of trees, 1 to 3; those of ``relative_to`` are of depth 3.
    alpha : float
        Controls the family-wise error rate over all levels (Holm), for each of the two classes.
    random_state : int
        Seed of the split into training and held-out rows.
    threads : int, optional

    Returns
    -------
    WeakLearning

    Notes
    -----
    On each level a function h is fitted to the training rows, by least squares on y less their mean. As the class is closed
    under affine transformations, some multiple of h improves on the best constant by Cov(h, y)^2 / Var(h) on the level: h
    is evidence of an advantage above gamma if Cov(h, y) / sd(h) > sqrt(gamma) there (theorem 3.2, first part). The p-value
    is that of Student's t, corrected for skewness, of the mean of (h - mean h)(y - mean y) / sd(h) over held-out rows, with
    sums over clusters if there are clusters; it is valid for any distribution with enough rows. The reported gain is that
    of h itself, with its scale: (m - y)^2 - (h - y)^2 on average, m the mean outcome of the held-out rows, than which no
    constant does better; it is not overstated, and is negative where h overshoots. That nothing is significant does not
    prove that the class is exhausted: no finite sample could.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, definitions 4.4 and 6.1.

    Examples
    --------
    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> age = random.uniform(20, 70, 4000)
    >>> outcome = (random.random(4000) < np.where(age > 50, 0.4, 0.25)).astype(float)
    >>> data = {"age": age, "p": np.full(4000, 0.3), "y": outcome}
    >>> weak_learning(data, outcome="y", prediction="p", features="age")
    <WeakLearning trees of depth 1 have an advantage on 1 of 1 levels: more rounds would help there>
    """
    check_number("gamma", gamma, 0)
    check_integer("depth", depth, 1, 3)
    check_integer("bins", bins, 2, 65_000)
    check_integer("threads", threads, 1, MAX_INTEGER, optional=True)
    check_learner(learner)
    if relative_to is not None:
        check_learner(relative_to, "relative_to")
    settings = check_settings(learner, levels, held_out, min_rows, alpha, random_state)
    table = read(
        data, outcome=outcome, prediction=prediction, weight=weight, features=features, task=task, categorical=categorical,
        unlabelled=unlabelled, cluster=cluster, check_columns=True,  # type: ignore[arg-type]
    )  # fmt: skip
    own, _, held, rows = divide(table, settings, "weak_learning")
    rows = _centred(own, rows)
    names, workers = level_names(own, rows), Workers(threads)
    found, labels = [], []
    for kind, deep in ((learner, depth), *([(relative_to, 3)] if relative_to is not None else [])):
        search = make_search(kind, own, rows, deep, bins, min_rows)
        shift = search.fit(rows, workers)
        found.append(_advantages(own, rows, held, shift, names, float(gamma)))
        labels.append(search.name)
    return WeakLearning(
        found[0], found[1] if len(found) > 1 else (), float(gamma), float(alpha), labels[0], (*labels, "")[1]
    )


def _centred(table: Table, rows: LevelRows) -> LevelRows:
    """Replace the residuals of the score by those of the mean outcome of the training rows of each level."""
    train, w = rows.train, rows.weight
    total = np.bincount(rows.level[train], (w * table.y)[train], rows.levels)
    mass = np.bincount(rows.level[train], w[train], rows.levels)
    mean = np.divide(total, mass, out=np.zeros(rows.levels), where=mass > 0)
    return replace(rows, residual=(table.y - mean[rows.level]) / rows.unit)


def _advantages(
    table: Table, rows: LevelRows, held: BoolArray, shift: FloatArray, names: Sequence[str], gamma: float
) -> tuple[Advantage, ...]:
    """Test the fitted functions, given by their values less the training mean (``shift``), on the held-out rows."""
    found = []
    cluster = None if table.cluster is None else np.unique(table.cluster, return_inverse=True)[1].ravel()
    for level, name in enumerate(names):
        every = np.flatnonzero(rows.level == level)
        own = every[held[every]]
        few = min(len(own), len(every) - len(own)) < MIN_ROWS_PER_SIDE
        gain = error = p_value = math.nan
        if not few:
            y, w = rows.residual[own], rows.weight[own]
            groups = None if cluster is None else np.unique(cluster[own], return_inverse=True)[1].ravel()
            mean = float(np.average(y, weights=w))
            difference = ((mean - y) ** 2 - (shift[own] - y) ** 2) * rows.unit**2
            measured = weighted_mean(difference, w, groups)
            gain, error = measured.value, measured.error
            centred = shift[own] - float(np.average(shift[own], weights=w))
            spread = math.sqrt(float(np.average(centred**2, weights=w)))
            products = centred / (spread or 1.0) * (y - mean) * rows.unit - math.sqrt(gamma)
            enough = groups is None or weighted_mean(products, w, groups).effective_rows >= inference.MIN_CLUSTERS
            p_value = (mean_pvalue(products, w, groups) if spread > 0 else 1.0) if enough else math.nan
        found.append(Advantage(name, len(every), len(own), gain, error, p_value, math.nan))
    tested = [item for item in found if item.tested]
    adjusted = iter(inference.adjust([item.p_value for item in tested], "holm").tolist())
    return tuple(replace(item, p_adjusted=next(adjusted)) if item.tested else item for item in found)
