"""The form that all exports share: a correction as expressions over the columns of a row, and their meaning in NumPy.

An expression has a value per row of one or more columns, its width: floats, integers or booleans. Operations work column by
column; an operand of one column serves every column of the other. Integers count cuts or number cells, classes and groups,
so that targets look corrections up in tables: they compute the same numbers, in the same order, as trueup's own scorer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.data.table import Schema

    Operand: TypeAlias = "Expression | float | FloatArray | IntArray"

ValueType = Literal["float", "int", "bool"]
DTYPES: dict[ValueType, Any] = {"float": np.float64, "int": np.int64, "bool": np.bool_}
# Operations on floats (or integers) that are the same in every target, and those of its mathematical library.
ARITHMETIC = ("add", "subtract", "multiply", "divide", "minimum", "maximum", "negative", "absolute", "ceil")
TRANSCENDENTAL = ("log", "log1p", "exp")
COMPARISONS = ("less", "less_equal", "equal", "isnan")
LOGICAL = ("logical_and", "logical_or", "logical_not")
ELEMENTWISE: dict[str, Callable[..., AnyArray]] = {
    name: getattr(np, name) for name in (*ARITHMETIC, *TRANSCENDENTAL, *COMPARISONS, *LOGICAL)
}


@dataclass(frozen=True, eq=False)
class CodeTrees:
    """Trees over integer codes; a node tests one code, and its children are nodes, or complements (~) of leaves.

    A node with ``members`` sends a row left if its code is a member; others if the code is at most ``cut`` or, for the code
    ``missing`` of missing numbers, if ``missing_left``.
    """

    root: IntArray  # per tree: a node, or the complement of a leaf
    column: IntArray  # per node: the position of the code
    cut: IntArray
    missing: IntArray
    missing_left: IntArray
    members: tuple[frozenset[int] | None, ...]
    left: IntArray
    right: IntArray
    value: FloatArray  # per leaf

    def __len__(self) -> int:
        return len(self.root)


@dataclass(frozen=True, eq=False)
class Expression:
    """One operation on the values of other expressions.

    The operations besides those of `ELEMENTWISE` are:

    - "scores", "numbers", "codes": the inputs; a code is 1 + the position of the level, 0 if it is missing, and that of
      `Program.unseen_code` if it is unseen;
    - "constant"; "take": some of the columns; "join": the columns of all operands; "where": a choice by a condition;
    - "gather": entries of one table per column, by their index;
    - "count": how many cuts are below a number (``closed="right"``) or at most it (``closed="left"``), 1 more than all
      cuts if it is missing; "count_in": the same for the cuts of one of several lists;
    - "index_of": 1 + the position of an integer among others, 0 if it is not among them;
    - "walk": the leaf value of each tree; "total": the sum of the columns, added from left to right.
    """

    op: str
    type: ValueType
    width: int
    args: tuple[Expression, ...] = ()
    data: Any = None

    def __add__(self, other: Operand) -> Expression:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return apply("subtract", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return apply("subtract", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return apply("multiply", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return apply("multiply", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return apply("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return apply("divide", other, self)

    def __neg__(self) -> Expression:
        return apply("negative", self)

    def __lt__(self, other: Operand) -> Expression:
        return apply("less", self, other)

    def __le__(self, other: Operand) -> Expression:
        return apply("less_equal", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return apply("less", other, self)

    def __ge__(self, other: Operand) -> Expression:
        return apply("less_equal", other, self)

    def __and__(self, other: Expression) -> Expression:
        return apply("logical_and", self, other)

    def __or__(self, other: Expression) -> Expression:
        return apply("logical_or", self, other)

    def __invert__(self) -> Expression:
        return apply("logical_not", self)

    def equals(self, other: Operand) -> Expression:
        """Return where the values are equal."""
        return apply("equal", self, other)

    def __getitem__(self, column: int) -> Expression:
        return self if self.width == 1 and column == 0 else take(self, [column])

    def __iter__(self) -> Iterator[Expression]:
        return (self[column] for column in range(self.width))


def constant(value: Any) -> Expression:
    """Return an expression with the same value in every row; an array has one value per column."""
    array = np.atleast_1d(np.asarray(value))
    kind: ValueType = "bool" if array.dtype.kind == "b" else "int" if array.dtype.kind in "iu" else "float"
    return Expression("constant", kind, len(array), data=array.astype(DTYPES[kind]))


def apply(op: str, *operands: Any) -> Expression:
    """Return the elementwise operation ``op`` of expressions, numbers or arrays."""
    args = tuple(operand if isinstance(operand, Expression) else constant(operand) for operand in operands)
    kind: ValueType = "bool" if op in COMPARISONS + LOGICAL else args[0].type
    if op in ARITHMETIC and len({arg.type for arg in args}) > 1:  # 1 is a float beside floats
        args = tuple(constant(arg.data.astype(np.float64)) if arg.op == "constant" else arg for arg in args)
        kind = "float"
    assert op not in ARITHMETIC + TRANSCENDENTAL or len({arg.type for arg in args}) == 1, "operands of two types"
    return Expression(op, kind, _width(args), args)


def _width(args: Sequence[Expression]) -> int:
    widths = {arg.width for arg in args} - {1}
    assert len(widths) <= 1, "operands of different widths"
    return widths.pop() if widths else 1


def take(x: Expression, columns: Sequence[int]) -> Expression:
    """Return some of the columns of an expression."""
    return Expression("take", x.type, len(columns), (x,), tuple(int(column) for column in columns))


def join(parts: Iterable[Expression]) -> Expression:
    """Return the columns of several expressions side by side."""
    args = tuple(parts)
    return args[0] if len(args) == 1 else Expression("join", args[0].type, sum(arg.width for arg in args), args)


def where(condition: Expression, x: Any, y: Any) -> Expression:
    """Return x where the condition holds, else y."""
    x, y = (value if isinstance(value, Expression) else constant(value) for value in (x, y))
    return Expression("where", x.type, _width((condition, x, y)), (condition, x, y))


def gather(tables: Sequence[AnyArray], index: Expression) -> Expression:
    """Return entries of one-dimensional tables, one table per column of the index."""
    assert len(tables) == index.width
    kind: ValueType = "float" if tables[0].dtype.kind == "f" else "int"
    if all((table == table[0]).all() for table in tables):
        return constant(np.array([table[0] for table in tables], DTYPES[kind]))
    return Expression("gather", kind, index.width, (index,), tuple(np.asarray(table, DTYPES[kind]) for table in tables))


def count(x: Expression, cuts: Sequence[FloatArray], closed: Literal["left", "right"] = "right") -> Expression:
    """Return how many of its ``cuts`` are below each column of x (or at most it, if closed on the left)."""
    assert len(cuts) == x.width
    return Expression("count", "int", x.width, (x,), (tuple(np.asarray(own, np.float64) for own in cuts), closed))


def count_in(x: Expression, which: Expression, cuts: Sequence[FloatArray]) -> Expression:
    """Return how many of the cuts number ``which`` (an expression of one column, as x) are below x, which is no NaN."""
    return Expression("count_in", "int", 1, (x, which), tuple(np.asarray(own, np.float64) for own in cuts))


def index_of(x: Expression, values: IntArray) -> Expression:
    """Return 1 + the position of x among the ascending ``values``, or 0."""
    return Expression("index_of", "int", x.width, (x,), np.asarray(values, np.int64))


def walk(trees: CodeTrees, codes: Expression) -> Expression:
    """Return the leaf value of each tree."""
    return Expression("walk", "float", len(trees), (codes,), trees)


def total(x: Expression) -> Expression:
    """Return the sum of all columns, added to 0 from left to right."""
    return constant(0.0) if x.width == 0 else Expression("total", x.type, 1, (x,))


def highest(x: Expression) -> Expression:
    """Return the largest of the columns."""
    first, *others = x
    for other in others:
        first = apply("maximum", first, other)
    return first


@dataclass(frozen=True, eq=False)
class Program:
    """A correction as expressions.

    ``valid`` tells which rows have valid scores: others have no result. ``exact`` are values that are the same in every
    target, such as sums of tables, because no logarithm or exponential enters them; ``cuts`` are numbers per input column
    at which scores may change, to check a target at and beside them.
    """

    schema: Schema
    result: Expression
    valid: Expression
    exact: tuple[Expression, ...]
    score_cuts: tuple[FloatArray, ...]  # per prediction column
    number_cuts: Mapping[str, FloatArray]  # per numeric feature
    notes: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numeric and date features, in the order of the columns of "numbers"."""
        return tuple(feature.name for feature in self.schema.features if feature.kind != "categorical")

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The levels of each categorical feature, in the order of the columns of "codes"."""
        return {feature.name: feature.levels for feature in self.schema.features if feature.kind == "categorical"}

    def unseen_code(self, name: str) -> int:
        """Return the code of unseen levels of a categorical feature: 0, as missing, or one of their own."""
        feature = next(feature for feature in self.schema.features if feature.name == name)
        return len(feature.levels) if feature.unseen_level else 0

    def ordered(self, *more: Expression) -> list[Expression]:
        """Return all expressions behind the result, validity and ``more``, operands before the operations on them."""
        return order((self.result, self.valid, *more))

    def evaluate(self, scores: FloatArray, numbers: FloatArray, codes: IntArray) -> dict[Expression, AnyArray]:
        """Compute all expressions in NumPy; inputs have one row per row."""
        inputs = {"scores": scores, "numbers": numbers, "codes": codes}
        values: dict[Expression, AnyArray] = {}
        for item in self.ordered(*self.exact):
            values[item] = evaluate_one(item, [values[arg] for arg in item.args], inputs)
        return values


def order(outputs: Iterable[Expression]) -> list[Expression]:
    """Return all expressions behind ``outputs``, operands first."""
    found: dict[int, Expression] = {}
    stack = [(output, False) for output in reversed(list(outputs))]
    while stack:
        item, seen = stack.pop()
        if seen:
            found.setdefault(id(item), item)
        elif id(item) not in found:
            stack.append((item, True))
            stack.extend((arg, False) for arg in reversed(item.args))
    return list(found.values())


def evaluate_one(item: Expression, args: Sequence[AnyArray], inputs: Mapping[str, AnyArray]) -> AnyArray:
    """Compute one expression from the values of its operands, shape (rows, width), or (1, width) if all rows are equal."""
    if item.op in ELEMENTWISE:
        return ELEMENTWISE[item.op](*args)
    if item.op in inputs:
        return inputs[item.op]
    return _OPERATIONS[item.op](item.data, *args)


def _join(_: None, *args: AnyArray) -> AnyArray:
    rows = max(len(arg) for arg in args)
    return np.concatenate([np.broadcast_to(arg, (rows, arg.shape[1])) for arg in args], axis=1)


def _gather(tables: Sequence[AnyArray], index: IntArray) -> AnyArray:
    return np.column_stack([table[own] for table, own in zip(tables, index.T, strict=True)])


def _index_of(values: IntArray, x: IntArray) -> IntArray:
    place = np.searchsorted(values, x)
    return np.where(values[np.minimum(place, len(values) - 1)] == x, place + 1, 0)


def _count(data: tuple[Sequence[FloatArray], str], x: FloatArray) -> IntArray:
    cuts, closed = data
    side: Literal["left", "right"] = "left" if closed == "right" else "right"
    counts = [np.searchsorted(own, column, side=side) for own, column in zip(cuts, x.T, strict=True)]
    return np.where(np.isnan(x), np.array([len(own) + 1 for own in cuts]), np.column_stack(counts))


def _count_in(cuts: Sequence[FloatArray], x: FloatArray, which: IntArray) -> IntArray:
    x, which = np.broadcast_arrays(x, which)
    counts = np.zeros(x.shape, np.int64)
    for own in np.unique(which).tolist():
        counts[which == own] = np.searchsorted(cuts[own], x[which == own])
    return counts


def _walk(trees: CodeTrees, codes: IntArray) -> FloatArray:
    found, rows = np.empty((len(codes), len(trees))), np.arange(len(codes))
    for place, root in enumerate(trees.root.tolist()):
        stack = [(root, rows)]
        while stack:
            node, own = stack.pop()
            if node < 0:
                found[own, place] = trees.value[~node]
                continue
            code, members = codes[own, trees.column[node]], trees.members[node]
            if members is None:
                missing = code == trees.missing[node]
                left = np.where(missing, trees.missing_left[node] == 1, code <= trees.cut[node])
            else:
                left = np.isin(code, list(members))
            stack += [(int(trees.left[node]), own[left]), (int(trees.right[node]), own[~left])]
    return found


_OPERATIONS: dict[str, Callable[..., AnyArray]] = {
    "constant": lambda values: values[None],
    "take": lambda columns, x: x[:, list(columns)],
    "join": _join,
    "where": lambda _, *args: np.where(*args),
    "gather": _gather,
    "count": _count,
    "count_in": _count_in,
    "index_of": _index_of,
    "walk": _walk,
    "total": lambda _, x: np.cumsum(x, axis=1)[:, -1:],
}
