"""A program column by column: what SQL computes, where an expression has one value per row.

Equal columns are one column. Operations that SQL lacks are written by others: a search in a list as a tree of
comparisons, log1p as logarithms, sums as additions from left to right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trueup.exports.program import ARITHMETIC, ELEMENTWISE, CodeTrees, Expression, Program, ValueType, order

_T = TypeVar("_T")

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from trueup._types import AnyArray, FloatArray

FEW_RUNS = 3  # a table of so few different neighbours is written as comparisons of its index
DEEPEST_TREE = 60
BITS = 62  # of a positive 64-bit integer
# Where overflow and underflow are errors: bounds of exponents, and of numbers that are added and multiplied.
EXPONENTS, SMALLEST_SCORE, LARGEST_NUMBER = (-700.0, 700.0), 1e-300, 1e100


@dataclass(frozen=True, eq=False)
class ScalarColumn:
    """One operation on other columns.

    The operations besides those of `ELEMENTWISE` are "constant"; "score", "number" and "code", the inputs by position;
    "known" (NULL for NaN); "guard" (NULL unless the first column holds); "flush" (0 for a tiny number); "bounded" (NULL for
    infinity, and no number beyond ``LARGEST_NUMBER``); "where"; "steps" (the values of a table by runs of its index);
    "gather" (the element of an array); "count" (cuts below x, or at most x; 1 more than all if x is missing) and "tree".
    """

    op: str
    type: ValueType
    args: tuple[ScalarColumn, ...] = ()
    data: Any = None


@dataclass(frozen=True, eq=False)
class TreePart:
    """Nodes of one tree; nodes that are keys of ``parts`` are other columns, by their position among the operands."""

    trees: CodeTrees
    root: int
    codes: dict[int, int]  # the operands that are codes, by the position of the code
    parts: dict[int, int]
    bits: dict[int, tuple[int, int]]  # the operand whose bit tells whether the code is a member, and the bit, by node
    nodes: int  # that are not in other columns


@dataclass(frozen=True)
class Outputs:
    """The columns that a program computes."""

    valid: ScalarColumn
    results: tuple[ScalarColumn, ...]
    exact: tuple[ScalarColumn, ...]


class ColumnGraph:
    """Columns of a program, each once.

    ``first`` is the index of the first element of an array; if the target ``raises`` errors of overflow and underflow,
    numbers are kept away from them; at most ``largest`` cuts or nodes are in one column.
    """

    def __init__(self, *, first: int, raises: bool, largest: int) -> None:
        self.first, self.raises, self.largest = first, raises, largest
        self.columns: dict[Hashable, ScalarColumn] = {}
        self.bits: dict[int, dict[tuple[int, frozenset[int]], tuple[ScalarColumn, int]]] = {}  # by the identity of trees

    def make(
        self, op: str, kind: ValueType, args: Sequence[ScalarColumn] = (), data: Any = None, key: Hashable = None
    ) -> ScalarColumn:
        """Return the column of an operation; equal operations on the same columns are the same column."""
        identity = (op, tuple(map(id, args)), data if key is None else key)
        return self.columns.setdefault(identity, ScalarColumn(op, kind, tuple(args), data))

    def constant(self, value: Any, kind: ValueType) -> ScalarColumn:
        """Return a constant column."""
        cast: Callable[[Any], Any] = {"float": float, "int": int, "bool": bool}[kind]
        return self.make("constant", kind, (), cast(value), (kind, repr(cast(value))))

    def integer(self, value: int) -> ScalarColumn:
        """Return a constant integer."""
        return self.constant(value, "int")

    def apply(self, op: str, *args: ScalarColumn) -> ScalarColumn:
        """Return an elementwise operation."""
        kind: ValueType = args[0].type if op in ARITHMETIC or op in ("log", "log1p", "exp") else "bool"
        if all(arg.op == "constant" for arg in args):
            with np.errstate(all="ignore"):
                return self.constant(ELEMENTWISE[op](*(np.array(arg.data) for arg in args)), kind)
        if op in ("multiply", "divide") and args[1].op == "constant" and args[1].data == 1:
            return args[0]
        if op == "multiply" and args[0].op == "constant" and args[0].data == 1:
            return args[1]
        if op == "logical_and":
            args = tuple(dict.fromkeys(arg for arg in args if arg.op != "constant" or not arg.data)) or args[:1]
            if len(args) == 1:
                return args[0]
        if op == "log1p":
            return self.log1p(args[0])
        if self.raises and op in ("add", "subtract", "multiply", "divide", "negative"):
            args = tuple(map(self._moderate, args))
        if self.raises and op == "exp":
            low, high = (self.constant(bound, "float") for bound in EXPONENTS)
            args = (self.apply("minimum", self.apply("maximum", args[0], low), high),)
        return self.make(op, kind, args)

    def _moderate(self, x: ScalarColumn) -> ScalarColumn:
        """Return an input as a number that can be multiplied without an error."""
        score = x.args[1] if x.op in ("guard", "where") else x
        if score.op != "known":
            return x
        if score.args[0].op == "number":
            return self.make("bounded", "float", (x,)) if score is x else x
        return self.make("flush", "float", (x,))

    def log1p(self, x: ScalarColumn) -> ScalarColumn:
        """Return log(1 + x) by a logarithm.

        Of -p it is log(1 - p): exact to 1e-16 where p is small, which is the precision of logits of scores. Others correct
        the rounding of 1 + x (Kahan; Goldberg, 1991, theorem 4).
        """
        one = self.constant(1.0, "float")
        if x.op == "negative":
            return self.apply("log", self.apply("subtract", one, x.args[0]))
        moved = self.apply("add", one, x)
        rounded = self.apply("subtract", moved, one)
        correct = self.apply("divide", self.apply("multiply", self.apply("log", moved), x), rounded)
        return self.where(self.apply("equal", moved, one), lambda: x, lambda: correct)

    def where(self, condition: ScalarColumn, x: Callable[[], ScalarColumn], y: Callable[[], ScalarColumn]) -> ScalarColumn:
        """Return a choice by a condition; a constant one makes the other branch vanish."""
        if condition.op == "constant":
            return (x if condition.data else y)()
        first, second = x(), y()
        return first if first is second else self.make("where", first.type, (condition, first, second))

    def plus(self, x: ScalarColumn, shift: int) -> ScalarColumn:
        """Return an integer column plus a constant, which is added to a table where that is possible."""
        if shift == 0:
            return x
        if x.op == "gather":
            table = x.data + shift
            return self.make("gather", "int", x.args, table, _key(table))
        if x.op == "add":
            return self.make("add", "int", (self.plus(x.args[0], shift), x.args[1]))
        return self.apply("add", x, self.integer(shift))

    def gather(self, table: AnyArray, index: ScalarColumn) -> ScalarColumn:
        """Return entries of a table."""
        kind: ValueType = "float" if table.dtype.kind == "f" else "int"
        if index.op == "constant":
            return self.constant(table[index.data], kind)
        ends = np.append(np.flatnonzero(table[1:] != table[:-1]), len(table) - 1)
        if len(ends) == 1:
            return self.constant(table[0], kind)
        if len(ends) <= FEW_RUNS:
            data = tuple(ends.tolist()), tuple(table[ends].tolist())
            return self.make("steps", kind, (index,), data, (kind, repr(data)))
        return self.make("gather", kind, (self.plus(index, self.first),), table, _key(table))

    def choose(self, x: ScalarColumn, lasts: Sequence[Any], leaf: Callable[[int], ScalarColumn]) -> ScalarColumn:
        """Return the leaf of the first number that x is at most, by bisection; the last leaf for all other x."""

        def between(low: int, high: int) -> ScalarColumn:
            if high - low == 1:
                return leaf(low)
            middle = (low + high) // 2
            least = self.apply("less_equal", x, self.constant(lasts[middle - 1], x.type))
            return self.where(least, lambda: between(low, middle), lambda: between(middle, high))

        return between(0, len(lasts))

    def index_of(self, x: ScalarColumn, values: Sequence[int]) -> ScalarColumn:
        """Return 1 + the position of x among values, or 0."""

        def leaf(place: int) -> ScalarColumn:
            found = self.apply("equal", x, self.integer(values[place]))
            return self.where(found, lambda: self.integer(place + 1), lambda: self.integer(0))

        return self.choose(x, values, leaf)

    def count(self, x: ScalarColumn, cuts: FloatArray, closed: str, *, missing: bool = True) -> ScalarColumn:
        """Return how many cuts are below x (or at most x); without ``missing``, x is no missing number."""
        if len(cuts) <= self.largest:
            return self.make("count", "int", (x,), (cuts, closed, missing), (_key(cuts), closed, missing))
        blocks = np.array_split(cuts, -(-len(cuts) // self.largest))
        starts = np.cumsum([0, *map(len, blocks)])

        def within(block: int) -> ScalarColumn:
            return self.apply("add", self.count(x, blocks[block], closed, missing=False), self.integer(int(starts[block])))

        lasts = [float(block[-1]) for block in blocks]
        if closed == "left":  # a cut that x equals counts: x belongs to the block after it
            lasts = [float(np.nextafter(last, -np.inf)) for last in lasts]
        found = self.choose(x, lasts, within)
        beyond = self.integer(len(cuts) + 1)
        return self.where(self.apply("isnan", x), lambda: beyond, lambda: found) if missing else found

    def tree(self, trees: CodeTrees, root: int, codes: Sequence[ScalarColumn]) -> ScalarColumn:
        """Return the leaf value of one tree; a large tree has parts in other columns."""
        if root < 0:
            return self.constant(trees.value[~root], "float")
        parts: dict[int, ScalarColumn] = {}
        sizes: dict[int, tuple[int, int, frozenset[int]]] = {}  # nodes, depth, and the other parts below each node
        stack = [(root, False)]
        while stack:
            node, seen = stack.pop()
            if node < 0 or node in sizes:
                continue
            children = [int(trees.left[node]), int(trees.right[node])]
            if not seen:
                stack += [(node, True), *((child, False) for child in children)]
                continue
            below = {child: sizes.get(child, (0, 0, frozenset())) for child in children}
            for measure, most in ((0, self.largest), (1, DEEPEST_TREE)):
                for child in sorted(children, key=lambda child: below[child][measure], reverse=True):
                    total = sum(size[0] for size in below.values()) if measure == 0 else max(s[1] for s in below.values())
                    if total >= most and below[child][0] > 1:
                        parts[child] = self._part(trees, child, codes, {at: parts[at] for at in below[child][2]})
                        below[child] = 1, 1, frozenset([child])
            sizes[node] = (
                1 + sum(size[0] for size in below.values()),
                1 + max(size[1] for size in below.values()),
                frozenset().union(*(size[2] for size in below.values())),
            )
        return self._part(trees, root, codes, {at: parts[at] for at in sizes[root][2]})

    def _part(
        self, trees: CodeTrees, root: int, codes: Sequence[ScalarColumn], parts: dict[int, ScalarColumn]
    ) -> ScalarColumn:
        """Return the column of a tree, or of the part of one below a node."""
        places: dict[ScalarColumn, int] = {}
        used: dict[int, int] = {}
        bits: dict[int, tuple[int, int]] = {}
        known, nodes, stack = self._bits(trees, codes), 0, [root]
        while stack:
            node = stack.pop()
            if node < 0 or (node in parts and node != root):
                continue
            nodes, at, members = nodes + 1, int(trees.column[node]), trees.members[node]
            if members is not None and (at, members) in known:
                word, bit = known[at, members]
                bits[node] = places.setdefault(word, len(places)), bit
            else:
                used[at] = places.setdefault(codes[at], len(places))
            stack += [int(trees.left[node]), int(trees.right[node])]
        others = {node: places.setdefault(column, len(places)) for node, column in parts.items()}
        return self.make("tree", "float", list(places), TreePart(trees, root, used, others, bits, nodes), (id(trees), root))

    def _bits(
        self, trees: CodeTrees, codes: Sequence[ScalarColumn]
    ) -> dict[tuple[int, frozenset[int]], tuple[ScalarColumn, int]]:
        """Return the sets of codes that are no range: a column of integers by the code, and the bit of each set in it."""
        if id(trees) not in self.bits:
            sets: dict[int, dict[frozenset[int], None]] = {}
            for at, members in zip(trees.column.tolist(), trees.members, strict=True):
                if members and max(members) - min(members) >= len(members):
                    sets.setdefault(at, {})[members] = None
            found: dict[tuple[int, frozenset[int]], tuple[ScalarColumn, int]] = {}
            for at, own in sets.items():
                highest = _highest(codes[at])
                rows = 1 + max(highest or 0, 1 + max(max(members) for members in own))
                index = codes[at]
                if highest is None:  # the last row stands for all higher codes, which are in no set
                    index = self.apply("minimum", index, self.integer(rows - 1))
                for block in _blocks(list(own), BITS):
                    table = np.zeros(rows, np.int64)
                    for bit, members in enumerate(block):
                        table[list(members)] |= 1 << bit
                    column = self.gather(table, index)
                    found |= {(at, members): (column, 1 << bit) for bit, members in enumerate(block)}
            self.bits[id(trees)] = found
        return self.bits[id(trees)]


def _blocks(values: Sequence[_T], most: int) -> list[Sequence[_T]]:
    return [values[at : at + most] for at in range(0, len(values), most)]


def _highest(column: ScalarColumn) -> int | None:
    """Return a number that no value of an integer column exceeds, if it is known."""
    if column.op == "gather":
        return int(column.data.max())
    return max(column.data[1]) if column.op == "steps" else None


def _key(values: AnyArray) -> Hashable:
    return values.dtype.kind, values.tobytes()


def lower_columns(program: Program, graph: ColumnGraph) -> Outputs:
    """Return the columns of the results of a program."""
    raw = [
        graph.make("known", "float", (graph.make("score", "float", (), at),))
        for at in range(len(program.schema.prediction))
    ]
    valid = _lower_outputs([program.valid], graph, program, raw)[program.valid][0]
    if not raw:
        scores = [graph.constant(0.0, "float")]
    elif program.valid in order([program.result, *program.exact]):  # invalid scores are replaced by the program
        scores = raw
    else:
        scores = [graph.make("guard", "float", (valid, score)) for score in raw]
    found = _lower_outputs([program.result, *program.exact], graph, program, scores)
    exact = [column for item in program.exact for column in found[item]]
    results = found[program.result]
    return Outputs(valid, tuple(results), tuple(exact))


def _lower_outputs(
    outputs: Sequence[Expression], graph: ColumnGraph, program: Program, scores: Sequence[ScalarColumn]
) -> dict[Expression, list[ScalarColumn]]:
    """Return the columns of all expressions behind the outputs."""
    numbers = [graph.make("known", "float", (graph.make("number", "float", (), at),)) for at in range(len(program.numbers))]
    codes = [graph.make("code", "int", (), at) for at in range(len(program.categories))]
    inputs = {"scores": list(scores), "numbers": numbers, "codes": codes}
    found: dict[Expression, list[ScalarColumn]] = {}
    for item in order(outputs):
        found[item] = inputs[item.op] if item.op in inputs else _lower_one(item, [found[arg] for arg in item.args], graph)
    return found


def _lower_one(item: Expression, args: list[list[ScalarColumn]], graph: ColumnGraph) -> list[ScalarColumn]:  # noqa: C901
    """Return the columns of one expression from those of its operands."""
    data, width = item.data, item.width

    def each(at: int) -> list[ScalarColumn]:
        return [arg[at if len(arg) > 1 else 0] for arg in args]

    if item.op in ELEMENTWISE:
        return [graph.apply(item.op, *each(at)) for at in range(width)]
    match item.op:
        case "constant":
            return [graph.constant(value, item.type) for value in data.tolist()]
        case "take":
            return [args[0][at] for at in data]
        case "join":
            return [column for arg in args for column in arg]
        case "where":
            choices = map(each, range(width))
            return [graph.where(test, lambda x=x: x, lambda y=y: y) for test, x, y in choices]  # type: ignore[misc]
        case "gather":
            return [graph.gather(table, index) for table, index in zip(data, args[0], strict=True)]
        case "count":
            cuts, closed = data
            return [graph.count(x, own, closed, missing=x.op == "known") for x, own in zip(args[0], cuts, strict=True)]
        case "count_in":
            x, which = args[0][0], args[1][0]
            return [graph.choose(which, range(len(data)), lambda at: graph.count(x, data[at], "right", missing=False))]
        case "index_of":
            return [graph.index_of(x, data.tolist()) for x in args[0]]
        case "walk":
            return [graph.tree(data, root, args[0]) for root in data.root.tolist()]
        case "total":
            first, *others = args[0]
            for other in others:
                first = graph.apply("add", first, other)
            return [first]
    raise AssertionError(item.op)
