"""Decisions row by row: costs that differ by row, costs of several classes, and the rule that takes the cheapest action.

A row i of class k costs V_ik under the action it gets. With l_i the smallest and s_i the range of V_i over the classes,
and q_i = (sum_k f_ik V_ik - l_i) / s_i, its cost is l_i + s_i z_i for an outcome z_i in [0, 1] with score q_i. A sum of
costs is thus a sum of outcomes with weights w_i s_i, and the intervals of `intervals` for weighted rows hold for it;
labelled rows state the error z - q per unit of s, and the ratio of its variance to q (1 - q).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_number
from trueup.data.columns import check_aligned
from trueup.decisions.clusters import read_clusters
from trueup.decisions.evidence import (
    AS_GIVEN,
    CROSS_FITTED_TOLERANCE,
    SHIFT_TOLERANCE,
    CrossFitted,
    Evidence,
    Inputs,
    Labelled,
    Segments,
    UnlabelledRows,
    format_amount,
    has_weight,
    is_number,
    quantile,
    read_segments,
    read_unlabelled,
    warn_of_shift,
)
from trueup.decisions.intervals import SegmentSums, compute_interval, describe_evidence, sum_segments
from trueup.decisions.rules import CAPACITY_SLACK, ERRORS, LARGEST_COST, BestRule, Rule, Share, as_actions, as_rule
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inference import likely_root
from trueup.metrics.inputs import validate_array, validate_class_scores
from trueup.metrics.regions import RegionError
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.decisions.evidence import Target

CHEAPEST = "cheapest"  # the rule by which each row gets the action of lowest expected cost
MAX_PRICE_STEPS = 10_000
MAX_FIXED = 12  # actions with fixed costs: every subset of them is evaluated
CLASS_EXAMPLE = 'write {"treat": [0, 2, 9], "wait": [5, 1, 0]}: the cost of each action on a row of class 0, 1, 2'
ROW_LABELS_HINT = 'pass labelled=tu.decisions.Labelled(y, p, costs={"fn": ...}) with the costs of the labelled rows'


# Costs


class RowCosts(NamedTuple):
    """What each action costs at each row of each class: ``cost`` has shape (actions, rows or 1, classes)."""

    names: tuple[str, ...]
    cost: FloatArray
    by_class: bool = False  # the same for all rows

    def expected(self, chance: FloatArray) -> FloatArray:
        """Return the expected cost of each action at each row, (actions, rows); ``chance`` has the probabilities."""
        return np.stack([(own * chance).sum(axis=1) for own in self.cost])

    def taken(self, index: IntArray) -> FloatArray:
        """Return the costs by class of the action that each row gets, (rows, classes)."""
        rows = np.zeros(len(index), np.int64) if self.by_class else np.arange(len(index))
        return np.asarray(self.cost[index, rows])


def differ_by_row(costs: Any) -> bool:
    """Return whether some cost is an array with one value per row."""
    if not isinstance(costs, Mapping):
        return False
    errors = set(costs) <= set(ERRORS)
    values = costs.values() if errors else itertools.chain.from_iterable(filter(_is_pair, costs.values()))
    return any(np.ndim(value) == 1 and not isinstance(value, str) for value in values)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def read_row_costs(costs: Any, kept: BoolArray) -> RowCosts:
    """Read costs of errors or of actions, each a number or one value per row, for the rows that ``kept`` marks."""

    def plain(value: Any) -> Any:
        return 0.0 if np.ndim(value) == 1 else value

    pairs = {} if set(costs) <= set(ERRORS) else {name: value for name, value in costs.items() if _is_pair(value)}
    scalars = {name: tuple(map(plain, pairs[name])) if name in pairs else plain(value) for name, value in costs.items()}
    actions = as_actions(scalars)  # validates names and plain numbers

    def column(value: Any, default: float, name: Any) -> FloatArray:
        if np.ndim(value) != 1:
            return np.full(int(kept.sum()), default)
        array = validate_array(value, f"the cost of {name!r}", LARGEST_COST)
        if len(array) != len(kept):
            raise DataError(
                f"the cost of {name!r} has {len(array):,} values for {len(kept):,} rows",
                hint="pass one per row, or a number",
            )
        return array[kept]

    if pairs:
        ends = [
            (column(pairs[name][0], action.positive, name), column(pairs[name][1], action.negative, name))
            for name, action in zip(costs, actions, strict=True)
        ]
    else:
        passing, acting = actions
        fn, fp, tp, tn = (
            column(costs.get(name), default, name)
            for name, default in (
                ("fn", passing.positive), ("fp", acting.negative), ("tp", acting.positive), ("tn", passing.negative)
            )
        )  # fmt: skip
        ends = [(fn, tn), (tp, fp)]
    cost = np.stack([np.column_stack([negative, positive]) for positive, negative in ends])
    return RowCosts(tuple(action.name for action in actions), cost)


def read_class_costs(costs: Any, classes: int) -> RowCosts:
    """Read {action: cost per class}, or a matrix of shape (classes, actions)."""
    if isinstance(costs, Mapping):
        names, rows = tuple(map(str, costs)), list(costs.values())
    else:
        matrix = np.asarray(costs, np.float64) if np.ndim(costs) == 2 else np.zeros((0, 0))
        names, rows = tuple(f"action {index}" for index in range(matrix.shape[1])), list(matrix.T)
    if not rows or len(set(names)) < len(names):
        raise ArgumentError(
            f"costs of {classes} classes must be a mapping of actions, or a matrix with a row per class; got "
            f"{'no action' if not rows else names!r:.60}",
            hint=CLASS_EXAMPLE,
            parameter="costs",
        )
    table = []
    for name, row in zip(names, rows, strict=True):
        if np.shape(row) != (classes,):
            raise ArgumentError(
                f"action {name!r} needs one cost per class, {classes}; got {row!r:.60}",
                hint=CLASS_EXAMPLE,
                parameter="costs",
            )
        for value in row:
            check_number(f"a cost of {name!r}", value, -LARGEST_COST, LARGEST_COST, hint=CLASS_EXAMPLE)
        table.append([float(value) for value in row])
    return RowCosts(names, np.array(table)[:, None, :], by_class=True)


# Rules


@dataclass(frozen=True)
class RowRule(Result):
    """Each row gets the action of lowest expected cost, plus a price that keeps actions within their capacities.

    For several classes these are the Bayes regions of the costs: intersections of half-spaces of the probabilities.

    Attributes
    ----------
    actions : tuple of str
    prices : tuple of float
        Added to the cost of each action per row when actions are compared, never to the cost that is reported: 0 without
        capacities, infinite for an action that is not used.
    fixed : tuple of float
        Cost of using each action at all.
    costs : tuple of tuples, optional
        Cost of each action by class; None where costs differ by row.
    """

    actions: tuple[str, ...]
    prices: tuple[float, ...]
    fixed: tuple[float, ...]
    costs: tuple[tuple[float, ...], ...] | None = None

    def index(self, expected: FloatArray) -> IntArray:
        """Return the number of the action of each row from expected costs (actions, rows); of equal ones the last."""
        priced = (expected + np.array(self.prices)[:, None])[::-1]
        return np.asarray(len(self.actions) - 1 - np.argmin(priced, axis=0), np.int64)

    def apply(self, p: ArrayLike, costs: Any = None) -> NDArray[np.object_]:
        """Return the name of each row's action; ``costs`` are those of the rows where they differ by row.

        Examples
        --------
        >>> from trueup.decisions import best_rule
        >>> rule = best_rule([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6]], {"treat": [0, 2, 9], "wait": [5, 1, 0]}).rule
        >>> rule.apply([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]).tolist()
        ['treat', 'wait']
        """
        if self.costs is None and costs is None:
            raise ArgumentError(
                "the costs differ by row: which action is cheapest depends on them",
                hint="pass the costs of these rows: rule.apply(p, costs)",
                parameter="costs",
            )
        rows = read_rows(p, None, None, self.costs_by_name() if costs is None else costs)
        return np.asarray(np.array(self.actions, object)[self.index(rows.costs.expected(rows.chance))])

    def costs_by_name(self) -> dict[str, tuple[float, ...]]:
        """Return the costs of each action by class."""
        return dict(zip(self.actions, self.costs or (), strict=True))

    def describe(self) -> list[str]:
        """Return the actions in use, with their prices."""
        return [
            f"{name} where cheapest" if price == 0 else f"{name} where cheaper by {format_amount(price)}"
            for name, price in zip(self.actions, self.prices, strict=True)
            if not math.isinf(price)
        ]

    def __repr__(self) -> str:
        return f"<RowRule {'; '.join(self.describe())}>"


class CostedRows(NamedTuple):
    """Rows with probabilities of classes (rows, classes), weights, segments, and the costs of the actions."""

    chance: FloatArray
    w: FloatArray
    segments: Segments | None
    costs: RowCosts
    kept: BoolArray  # which of the given rows have weight


def read_rows(p: ArrayLike, weight: ArrayLike | None, segments: Any, costs: Any) -> CostedRows:
    """Validate probabilities, weights, segments and costs; rows of weight 0 are dropped."""
    check_aligned({"p": p, "weight": weight, "segments": segments})
    if is_matrix(p):
        data = validate_class_scores(np.zeros(len(np.asarray(p))), p, weight)
        kept = has_weight(weight, np.zeros(len(np.asarray(p))))
        groups = None if segments is None else read_segments(segments, kept)
        return CostedRows(data.p, data.w, groups, read_class_costs(costs, data.p.shape[1]), kept)
    rows, kept = read_unlabelled(p, weight, segments), has_weight(weight, p)
    return CostedRows(np.column_stack([1 - rows.p, rows.p]), rows.w, rows.segments, read_row_costs(costs, kept), kept)


def is_matrix(p: Any) -> bool:
    """Return whether scores have a column per class."""
    shape = np.shape(p)
    return len(shape) == 2 and shape[1] > 1


def as_row_rule(rule: Any, rows: CostedRows) -> RowRule | Rule:
    """Read a rule for rows whose costs differ by row or class: "cheapest", a RowRule, or what `as_rule` reads."""
    rule = rule.rule if isinstance(rule, BestRule) else rule
    names, many, classes = rows.costs.names, len(rows.costs.names), rows.costs.by_class
    if (rule is None and classes) or (isinstance(rule, str) and rule == CHEAPEST):
        return RowRule(names, (0.0,) * many, (0.0,) * many, _class_costs(rows.costs))
    if isinstance(rule, RowRule):
        if rule.actions != names:
            raise ArgumentError(
                f"the rule has the actions {', '.join(rule.actions)}; the costs are of {', '.join(names)}",
                hint="name the same actions in the same order",
                parameter="rule",
            )
        return rule
    if classes:
        raise ArgumentError(
            f"a rule for several classes is {CHEAPEST!r} or a result of best_rule; got {rule!r:.60}",
            hint="leave it out: each row gets the action of lowest expected cost",
            parameter="rule",
        )
    if rule is None:
        raise ArgumentError("no rule was given", hint='write threshold=0.2, or rule="cheapest"', parameter="rule")
    return as_rule(rule, as_actions(dict.fromkeys(names, (0.0, 0.0))))


def is_row_rule(rule: Any) -> bool:
    """Return whether a rule compares the costs of the actions at each row."""
    rule = rule.rule if isinstance(rule, BestRule) else rule
    return isinstance(rule, RowRule) or (isinstance(rule, str) and rule == CHEAPEST)


def fixed_cost(rule: RowRule | Rule, index: IntArray) -> float:
    """Return the total fixed cost of the actions in use."""
    return rule.fixed if isinstance(rule, Rule) else float(np.array(rule.fixed)[np.unique(index)].sum())


def _class_costs(costs: RowCosts) -> tuple[tuple[float, ...], ...] | None:
    if not costs.by_class:
        return None
    return tuple(map(tuple, costs.cost[:, 0].tolist()))


def action_index(rule: RowRule | Rule, rows: CostedRows) -> IntArray:
    """Return the number, among the actions of the costs, of the action that each row gets."""
    if isinstance(rule, Rule):
        place = np.array([rows.costs.names.index(action.name) for action in rule.actions])
        return np.asarray(place[rule.action_index(rows.chance[:, 1])])
    costs = rows.costs if rule.costs is None else rows.costs._replace(cost=np.array(rule.costs)[:, None, :])
    return rule.index(costs.expected(rows.chance))


def best_row_rule(rows: CostedRows, fixed: FloatArray, capacity: FloatArray) -> BestRule:
    """Find the action of each row at the lowest total cost, with fixed costs and capacities by action."""
    expected, names = rows.costs.expected(rows.chance), rows.costs.names
    total = float(rows.w.sum())
    if capacity.sum() * CAPACITY_SLACK < total:
        raise ArgumentError(
            f"capacity allows {capacity.sum():,.6g} of {total:,.10g} rows: no rule gives every row an action",
            hint="leave one action without a capacity",
            parameter="capacity",
        )
    charged = np.flatnonzero(fixed > 0)
    if len(charged) > MAX_FIXED:
        raise ArgumentError(f"fixed_costs of {len(charged)} actions; at most {MAX_FIXED}", parameter="fixed_costs")
    best: tuple[float, RowRule, IntArray] | None = None
    for used in itertools.product((True, False), repeat=len(charged)):
        prices = np.zeros(len(names))
        prices[charged] = np.where(used, 0.0, math.inf)
        if np.isinf(prices).all() or capacity[np.isfinite(prices)].sum() * CAPACITY_SLACK < total:
            continue
        rule = RowRule(names, tuple(prices.tolist()), tuple(fixed.tolist()), _class_costs(rows.costs))
        rule = _within_capacity(rule, expected, rows.w, capacity * CAPACITY_SLACK)
        index = rule.index(expected)
        # Sums of sorted values do not depend on the order of the rows.
        cost = float(np.sort(rows.w * expected[index, np.arange(len(index))]).sum())
        cost += float(fixed[np.unique(index)].sum())
        if best is None or cost < best[0]:
            best = cost, rule, index
    assert best is not None
    cost, rule, index = best
    taken = np.bincount(index, rows.w, len(names))
    over = tuple(name for name, most in zip(names, capacity, strict=True) if total > most * CAPACITY_SLACK)
    uniform = {name: float(rows.w @ own + charge) for name, own, charge in zip(names, expected, fixed, strict=True)}
    shares = tuple(share for share, count in zip(shares_of(rows, index), taken, strict=True) if count)
    return BestRule(rule, cost, shares, {}, uniform, over)


def _within_capacity(rule: RowRule, expected: FloatArray, w: FloatArray, capacity: FloatArray) -> RowRule:
    """Raise the prices of actions with too many rows until all capacities hold.

    The price of one such action at a time is raised until its rows fit: those with the smallest advantage leave. Prices
    never fall, and others' prices can only bring rows back (gross substitutes: Kelso & Crawford 1982): at the end every
    priced action is full, and by duality of the assignment problem no rule is cheaper.
    """
    prices = np.array(rule.prices)
    for _ in range(MAX_PRICE_STEPS):
        rule = RowRule(rule.actions, tuple(prices.tolist()), rule.fixed, rule.costs)
        index = rule.index(expected)
        over = np.bincount(index, w, len(prices)) > capacity
        if not over.any():
            return rule
        j = int(np.argmax(over))
        own = np.flatnonzero(index == j)
        others = (expected + prices[:, None])[:, own]
        mine = others[j].copy()
        others[j] = math.inf
        advantage = others.min(axis=0) - mine
        order = np.argsort(-advantage, kind="stable")
        load = np.cumsum(w[own][order])
        sorted_advantage = advantage[order]
        first = int(np.argmax(load > capacity[j]))  # the first row that does not fit, and all rows of equal advantage
        first = int(np.argmax(sorted_advantage <= sorted_advantage[first]))
        prices[j] += math.inf if first == 0 else (sorted_advantage[first - 1] + sorted_advantage[first]) / 2
        if not np.isfinite(prices).any():
            break
    raise ArgumentError(
        "no rule keeps all actions within their capacities: rows with equal probabilities and costs get the same action",
        hint="raise a capacity, or leave one action without",
        parameter="capacity",
    )


def shares_of(rows: CostedRows, index: IntArray) -> tuple[Share, ...]:
    """Return the rows, expected positives and expected cost of each action."""
    many, cost = len(rows.costs.names), rows.costs.taken(index)
    expected = rows.w * (cost * rows.chance).sum(axis=1)
    positive = rows.w * rows.chance[:, 1] if rows.chance.shape[1] == 2 else np.full(len(index), math.nan)
    sums = [np.bincount(index, values, many).tolist() for values in (rows.w, positive, expected)]
    return tuple(Share(name, *values) for name, *values in zip(rows.costs.names, *sums, strict=True))


# Evidence


class LabelledClasses:
    """Labelled rows of several classes as evidence about the errors of their probabilities.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        The class of each row, a column index of p.
    p : array-like, shape (n, k)
    weight, segments, cluster : optional
        As for `Labelled`.

    Examples
    --------
    >>> LabelledClasses([0, 2], [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    <LabelledClasses 2 rows of 3 classes>
    """

    def __init__(
        self, y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, segments: Any = None, *, cluster: Any = None
    ) -> None:
        data = validate_class_scores(y, p, weight)
        kept = has_weight(weight, y)
        self.chance, self.w = data.p.copy(), data.w.copy()
        self.outcome = np.eye(data.p.shape[1])[data.y.astype(np.int64)]
        self.segments = None if segments is None else read_segments(segments, kept)
        self.clusters = None if cluster is None else read_clusters(cluster, kept)
        self.shift_tolerance = SHIFT_TOLERANCE

    def __len__(self) -> int:
        return len(self.w)

    def __repr__(self) -> str:
        return f"<LabelledClasses {len(self):,} row{'' if len(self) == 1 else 's'} of {self.chance.shape[1]} classes>"


def read_class_evidence(labelled: Any) -> LabelledClasses | None:
    """Validate the ``labelled`` argument for several classes: (y, p), (y, p, weight), a calibrator or `LabelledClasses`."""
    if labelled is None or isinstance(labelled, LabelledClasses) or read_region_bound(labelled)[1]:
        return labelled if isinstance(labelled, LabelledClasses) else None
    if isinstance(labelled, tuple) and len(labelled) in (2, 3):
        return LabelledClasses(*labelled)
    if isinstance(labelled, CrossFitted) and labelled.held_out_ is not None and labelled.held_out_.p.ndim > 1:
        held_out = LabelledClasses(*labelled.held_out_, cluster=getattr(labelled, "held_out_cluster_", None))
        held_out.shift_tolerance = CROSS_FITTED_TOLERANCE
        return held_out
    raise ArgumentError(
        "for several classes labelled must be (y, p), LabelledClasses, a calibrator of several classes with held-out rows, "
        f"or a bound on the errors of decision regions; got {type(labelled).__name__}",
        hint="pass labelled=(y, p), with a column of p per class; a loaded model needs a file saved with evidence=True",
        parameter="labelled",
    )


def read_region_bound(labelled: Any) -> tuple[float, str]:
    """Return a bound on the error of decision regions by class, and its description; empty without one."""
    if is_number(labelled) and 0 <= labelled <= 1:
        return float(labelled), f"c at most {float(labelled):g}, {AS_GIVEN}"
    if isinstance(labelled, RegionError):
        return labelled.value, f"c at most {labelled.value:.4g}, {AS_GIVEN}"
    return 0.0, ""


class KnownRows(NamedTuple):
    """Labelled rows with their outcomes as probabilities of 0 and 1 (rows, classes), and their evidence."""

    rows: CostedRows
    outcome: FloatArray
    clusters: IntArray | None
    allow_missing_segments: bool = False
    shift_tolerance: float = SHIFT_TOLERANCE


def read_known(labelled: Evidence | LabelledClasses | None, rows: CostedRows, costs: Any) -> KnownRows | None:
    """Return labelled rows with their costs; raise for other evidence, which says nothing about weighted errors."""
    if isinstance(labelled, LabelledClasses):
        if labelled.chance.shape[1] != rows.chance.shape[1]:
            message = f"the labelled rows have {labelled.chance.shape[1]} classes, the rows {rows.chance.shape[1]}"
            raise DataError(message, hint="pass the same classes in the same order")
        kept = np.ones(len(labelled), bool)
        return KnownRows(
            CostedRows(labelled.chance, labelled.w, labelled.segments, rows.costs, kept),
            labelled.outcome,
            labelled.clusters,
            shift_tolerance=labelled.shift_tolerance,
        )
    if labelled is None:
        return None
    if not isinstance(labelled, Labelled):
        raise ArgumentError(
            "a bound on c is for costs that are the same for all rows: errors may be larger where costs are",
            hint=ROW_LABELS_HINT,
            parameter="labelled",
        )
    data, varies = labelled.rows, differ_by_row(costs)
    if varies and labelled.costs is None:
        raise ArgumentError(
            "the costs differ by row, and those of the labelled rows are unknown",
            hint=ROW_LABELS_HINT,
            parameter="labelled",
        )
    own, kept = (labelled.costs, labelled.kept) if varies else (costs, np.ones(len(data.y), bool))
    table = read_row_costs(own, kept)
    if table.names != rows.costs.names:
        raise ArgumentError(
            f"the labelled rows have costs of {', '.join(table.names)}, the rows of {', '.join(rows.costs.names)}",
            hint="name the same actions in the same order",
            parameter="labelled",
        )
    chance, outcome = (np.column_stack([1 - values, values]) for values in (data.p, data.y))
    own_rows = CostedRows(chance, data.w, labelled.segments, table, kept)
    return KnownRows(own_rows, outcome, labelled.clusters, labelled.allow_missing_segments)


# Intervals


class RowEstimate(NamedTuple):
    """An estimated cost with its interval; names as in `ExpectedCost`."""

    estimate: float
    low: float
    high: float
    correction: float
    half_widths: dict[str, float]
    rows: float
    evidence: str


class _Units(NamedTuple):
    """The costs of rows as l + s z: lowest cost, range, score q of z, and variance of the cost if calibrated."""

    low: FloatArray
    size: FloatArray
    score: FloatArray
    variance: FloatArray

    @classmethod
    def of(cls, cost: FloatArray, chance: FloatArray) -> _Units:
        low = cost.min(axis=1)
        size, shifted = cost.max(axis=1) - low, cost - low[:, None]
        mean = (shifted * chance).sum(axis=1)
        score = np.divide(mean, size, out=np.zeros(len(low)), where=size > 0)
        return cls(low, size, np.clip(score, 0.0, 1.0), np.maximum((shifted**2 * chance).sum(axis=1) - mean**2, 0.0))


def estimate_rows(
    cost: FloatArray,
    rows: CostedRows,
    known_cost: FloatArray | None,
    known: KnownRows | None,
    *,
    level: float,
    target: Target,
    extra: float = 0.0,
) -> tuple[RowEstimate, dict[str, RowEstimate], float]:
    """Estimate the sum of ``cost`` (rows, classes), with its interval, overall and by segment, and the shift of scores.

    ``known_cost`` are the costs of the labelled rows. ``extra`` is a bound on the error per row, added to the interval.
    """
    units, failing = _Units.of(cost, rows.chance), (1 - level) / 2
    uncertain = units.size > 0
    overall: list[SegmentSums] = []
    single: dict[str, SegmentSums] = {}
    inputs, distance = None, math.nan
    variances: dict[str | None, tuple[float, float]] = {}
    if known is not None and known_cost is not None and uncertain.any():
        evidence = _as_labelled(known_cost, known)
        evidence.shift_tolerance = known.shift_tolerance
        unlabelled = UnlabelledRows(
            units.score[uncertain], (rows.w * units.size)[uncertain], _take_segments(rows.segments, uncertain)
        )
        inputs = Inputs(unlabelled, evidence, level, "rows", tuned=False, distance=math.nan)
        if rows.costs.by_class:  # the score itself is compared elsewhere
            distance = warn_of_shift(evidence, unlabelled)
        overall, single = sum_segments(inputs, [])
        if known.clusters is None:
            parts: list[tuple[str | None, UnlabelledRows]] = [*unlabelled.by_segment()]
            parts = parts or [(None, unlabelled)]
            variances = {name: _variances(evidence, name, part, failing) for name, part in parts}
    every = np.ones(len(rows.w), bool)
    total = _estimate(every, units, rows, overall, inputs, list(variances.values()), failing, target, extra)
    names, codes = ((), np.zeros(0)) if rows.segments is None else rows.segments
    by_segment = {
        name: _estimate(
            codes == code,
            units,
            rows,
            [single[name]] if name in single else [],
            inputs,
            [variances[name]] if name in variances else [],
            failing,
            target,
            extra,
        )
        for code, name in enumerate(names)
    }
    return total, by_segment, distance


def _estimate(
    own: BoolArray, units: _Units, rows: CostedRows, sums: Sequence[SegmentSums], inputs: Inputs | None,
    variances: Sequence[tuple[float, float]], failing: float, target: Target, extra: float,
) -> RowEstimate:  # fmt: skip
    low, size, score, variance = (column[own] for column in units)
    w = rows.w[own]
    weight, least, reach, z = float(w.sum()), float(w @ low), float(w @ size), quantile(failing)
    expected = low + size * score
    total, correction, noise, known = float(w @ expected), 0.0, float(w**2 @ variance), 0.0
    if sums and inputs is not None:
        one = np.ones((1, 1))
        interval = compute_interval(sums, one, 0 * one, inputs)
        total, correction = least + float(interval.total[0]), float(interval.correction[0])
        halves = interval.half_widths
        noise, known = (float(halves.get(name, np.zeros(1))[0] / z) ** 2 for name in ("label noise", "calibration"))
        if variances:
            noise, known = (sum(values) for values in zip(*variances, strict=True))
    component, unit = "label noise", 1.0
    if target == "population":
        mean = total / weight
        deviation = expected + correction / reach * size - mean if reach > 0 else expected - mean
        largest = float(np.abs(w * deviation).max())
        noise = float(likely_root(float(((w * deviation) ** 2).sum()), largest, failing)) ** 2
        component, unit = "sampling", weight
    half = z * math.sqrt(noise + known) + weight * extra
    halves_out = {component: z * math.sqrt(noise) / unit}
    if sums or extra:
        halves_out["calibration"] = (z * math.sqrt(known) + weight * extra) / unit
    ends = (least, least + reach) if target == "rows" else (weight * float(low.min()), weight * float((low + size).max()))
    estimate, lower, upper = (min(max(total + side, ends[0]), ends[1]) / unit for side in (0.0, -half, half))
    return RowEstimate(estimate, lower, upper, correction / unit, halves_out, weight, describe_evidence(sums))


def _variances(evidence: Labelled, segment: str | None, rows: UnlabelledRows, failing: float) -> tuple[float, float]:
    """Return the variances of the sum over ``rows``: of its noise, and of the correction by labelled rows.

    The weights, w s, may differ by orders of magnitude, but are known: the variance of a row is w^2 s^2 q (1 - q) times a
    ratio, the larger one of two that are observed on the labelled rows: without weights, bounded from above, and with them.
    """
    own = float((rows.w**2 * rows.p * (1 - rows.p)).sum())
    known = evidence.of(segment, rows)
    if not len(known.y):
        return own, 0.0
    squares, expected = (known.y - known.p) ** 2, known.p * (1 - known.p)
    weights = (known.w / known.w.sum()) ** 2
    if not expected.any():
        return float(rows.w @ rows.w), float(rows.w.sum() ** 2 * (weights @ squares))
    ratio = float(likely_root(float(squares.sum()), 1.0, failing)) ** 2 / float(expected.sum())
    ratio = max(ratio, float(weights @ squares) / float(weights @ expected))
    return own * ratio, float(rows.w.sum()) ** 2 * float(weights @ expected) * ratio


def _as_labelled(cost: FloatArray, known: KnownRows) -> Labelled:
    """Return labelled rows as rows with outcome z, score q and weight w s."""
    units = _Units.of(cost, known.rows.chance)
    realised = (cost * known.outcome).sum(axis=1) - units.low
    outcome = np.divide(realised, units.size, out=np.zeros(len(realised)), where=units.size > 0)
    weight = known.rows.w * units.size
    if not weight.any():
        raise DataError(
            "every labelled row costs the same whatever its class: they say nothing about the cost of the others",
            hint="label rows that the rule treats as it treats the others",
        )
    evidence = Labelled(np.clip(outcome, 0.0, 1.0), units.score, weight, known.rows.segments, cluster=known.clusters)
    evidence.allow_missing_segments = known.allow_missing_segments
    return evidence


def _take_segments(segments: Segments | None, kept: BoolArray) -> Segments | None:
    if segments is None:
        return None
    used, codes = np.unique(segments.codes[kept], return_inverse=True)
    return Segments(tuple(segments.names[code] for code in used.tolist()), codes)


def region_factor(costs: RowCosts, index: IntArray) -> float:
    """Return the largest error of a cost per row if the decision regions have errors of at most 1 by class.

    The errors of one region add up to 0 over the classes: with |R_k| <= c, sum_k C_k R_k is at most c sum_k |C_k - median|.
    Two classes: |a - b|, as in Claim 1 of Gao, Parameswaran & Peng (2017).
    """
    used = costs.cost[np.unique(index), 0]
    return float(np.abs(used - np.median(used, axis=1, keepdims=True)).sum())
