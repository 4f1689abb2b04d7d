"""Programs as ONNX models of standard operators, for onnxruntime and other runtimes of ONNX.

Values are matrices of one row per column of an expression, because operations on whole columns are then contiguous. Numbers
are double precision, integers 64 bits wide. Sums are cumulative sums along the columns, whose order is defined; trees and
counts of cuts are ensembles that add a single number per target. A graph optimiser has nothing to reorder.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._optional import require
from trueup.errors import ArgumentError
from trueup.exports import ensembles
from trueup.exports.program import ELEMENTWISE, TRANSCENDENTAL, evaluate_one, order

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.data.table import Feature
    from trueup.exports.program import CodeTrees, Expression, Program

OPSET, ML_OPSET, IR_VERSION = 18, 3, 8  # BitwiseAnd is of opset 18, double precision in ensembles of ml 3
ML = "ai.onnx.ml"
OPERATORS = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "minimum": "Min", "maximum": "Max",
    "negative": "Neg", "absolute": "Abs", "ceil": "Ceil", "less": "Less", "less_equal": "LessOrEqual", "equal": "Equal",
    "isnan": "IsNaN", "logical_and": "And", "logical_or": "Or", "logical_not": "Not",
}  # fmt: skip
BASE_EXPONENT = 512.0  # exponentials are powers of e^512
MIN_MASKED = 40  # trees; fewer are walked node by node, which takes fewer operators
MAX_PADDING = 4  # tables are padded to a common length if that multiplies their size by at most this
BATCH_ROWS = 4_096  # a row of a model of 1,000 trees takes some 20 kB
METADATA = "trueup"  # the key of the description of inputs and outputs among the properties of the model


class Base(NamedTuple):
    """A tensor of the graph of one row per column (``flat``: a vector, of one column); ``code`` is a category's."""

    name: str
    width: int
    sizes: tuple[int | None, ...] = ()  # per column, for integers: more than the largest
    flat: bool = False
    code: str | None = None  # the input column, before it is encoded; it has no name yet


Columns = tuple[tuple[Base, int], ...]  # columns of an expression: a tensor and its row


def write_onnx(program: Program, *, checks: bool = False) -> bytes:
    """Return a program as a serialised ONNX model.

    Parameters
    ----------
    program : Program
    checks : bool
        Add the outputs ``exact_0``, ``exact_1``, ...: the values of `Program.exact`, of shape (n, width).

    Returns
    -------
    bytes
        A ModelProto. Inputs are vectors of n rows under the names of their columns: predictions and numbers as doubles
        (NaN if missing), dates as days since 1970-01-01, categories as strings (a text that is no level if missing, such as
        ""). Outputs are vectors of doubles, named ``p_trueup`` for a prediction ``p``; NaN for rows without valid scores.
        The property "trueup" of the model lists inputs and outputs as JSON: a column whose name is empty or taken has
        another name there.

    Examples
    --------
    >>> import trueup as tu
    >>> from trueup.exports.lower import lower
    >>> from trueup.exports.onnx import run_onnx, write_onnx
    >>> loans = tu.simulate.lending(10_000, seed=0)
    >>> model = tu.MCGrad("prediction", ["region", "age"]).fit(loans, loans["outcome"]).model_
    >>> data = write_onnx(lower(model))
    >>> bool(abs(run_onnx(data, loans)[:, 0] - model.predict(loans)).max() <= 4e-16)
    True
    """
    return _GraphWriter(program).model(checks=checks)


def run_onnx(data: bytes, columns: Mapping[str, Any]) -> FloatArray:
    """Return the outputs of a model of `write_onnx` side by side, computed by onnxruntime.

    ``columns`` has the input columns by name, arrays of n rows. None and NaN are missing among categories.
    """
    session = require("onnxruntime", extra="onnx").InferenceSession(data, providers=["CPUExecutionProvider"])
    described = json.loads(session.get_modelmeta().custom_metadata_map[METADATA])
    rows = len(columns[described["inputs"][0]["column"]])
    batches = []
    for first in range(0, max(rows, 1), BATCH_ROWS):
        feed = {
            entry["name"]: _as_input(columns[entry["column"]][first : first + BATCH_ROWS], entry)
            for entry in described["inputs"]
        }
        batches.append(np.column_stack(session.run(None, feed)))
    return np.concatenate(batches)


def _as_input(values: Any, entry: Mapping[str, Any]) -> AnyArray:
    if entry["kind"] != "category":
        values = np.asarray(values)
        if values.dtype.kind == "M":
            values = (values - np.datetime64(0, "D")) / np.timedelta64(1, "D")
        return np.asarray(values, np.float64)
    missing = entry["missing"]
    return np.array([missing if value is None or value != value else value for value in values], object)


class _GraphWriter:
    """The graph of one program."""

    def __init__(self, program: Program) -> None:
        self.onnx = require("onnx", extra="onnx")
        self.helper = require("onnx.helper", extra="onnx")
        self.types = self.onnx.TensorProto
        self.program = program
        self.nodes: list[Any] = []
        self.initial: dict[tuple[str, tuple[int, ...], bytes], tuple[str, Any]] = {}
        self.inputs: dict[str, dict[str, Any]] = {}  # by column
        self.memo: dict[int, Columns | AnyArray] = {}
        self.joined: dict[Columns, str] = {}
        self.divided: dict[Base, list[str]] = {}
        self.rows: str | None = None
        schema = program.schema
        columns = dict.fromkeys([*schema.prediction, *(feature.name for feature in schema.features)])
        taken: set[str] = set()
        self.names = {column: _free(column or "column", [*taken, *(set(columns) - {column})], taken) for column in columns}
        self.outputs = [_free(name, taken, taken) for name in schema.score_names]
        self.prefix = "trueup/"
        while any(name.startswith(self.prefix) for name in taken | {f"exact_{k}" for k in range(len(program.exact))}):
            self.prefix += "/"
        self.taken = taken
        self.raw = self._inputs()

    # Nodes

    def _name(self) -> str:
        return f"{self.prefix}{len(self.nodes) + len(self.initial)}"

    def node(self, op: str, *inputs: str | AnyArray, output: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add a node of one output and return its name; arrays among the inputs become initialisers."""
        names = [self.array(own) if isinstance(own, np.ndarray) else own for own in inputs]
        name = self._name() if output is None else output
        self.nodes.append(self.helper.make_node(op, names, [name], f"{self.prefix}node {len(self.nodes)}", None, domain,
                                                **attributes))  # fmt: skip
        return name

    def array(self, values: AnyArray) -> str:
        """Return the name of an initialiser."""
        values = np.asarray(values, order="C")
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self.initial:
            name = self._name()
            self.initial[key] = (name, self.onnx.numpy_helper.from_array(values, name))
        return self.initial[key][0]

    def ensemble(self, attributes: dict[str, Any], x: str) -> str:
        """Add a TreeEnsembleRegressor; its output is single precision, of shape (n, targets)."""
        attributes = dict(attributes)
        for name in ("nodes_values", "target_weights"):
            values = attributes.pop(name)
            if values.dtype == np.float64:
                attributes[f"{name}_as_tensor"] = self.onnx.numpy_helper.from_array(values, name)
            else:
                attributes[name] = values.tolist()
        return self.node("TreeEnsembleRegressor", x, domain=ML, **attributes)

    def transposed(self, x: str) -> str:
        """Return the transpose of a matrix."""
        return self.node("Transpose", x, perm=[1, 0])

    # Inputs and columns

    def _inputs(self) -> dict[str, list[Base]]:
        schema, program = self.program.schema, self.program
        for name in schema.prediction:
            self._input(name, {"kind": "prediction", "missing": None})
        for feature in schema.features:
            kind = {"categorical": "category", "numeric": "number", "date": "date"}[feature.kind]
            missing = _missing_marker(feature) if kind == "category" else None
            if (feature.name in schema.prediction) and kind != "number":
                raise ArgumentError(
                    f"column {feature.name!r} is a prediction and a feature of another kind, which ONNX has no type for",
                    hint="fit the model with a copy of the column under another name",
                )
            self._input(feature.name, {"kind": kind, "missing": missing})
        return {
            "scores": [Base(self.names[name], 1, (None,), flat=True) for name in schema.prediction],
            "numbers": [Base(self.names[name], 1, (None,), flat=True) for name in program.numbers],
            "codes": [Base("", 1, (len(levels) + 1,), flat=True, code=name) for name, levels in program.categories.items()],
        }

    def _input(self, column: str, described: dict[str, Any]) -> None:
        self.inputs.setdefault(column, {"name": self.names[column], "column": column, **described})

    def encoded(self, column: str, table: AnyArray) -> str:
        """Return a category as integers, given by a table of codes: 0 for missing, k + 1 for level k."""
        levels, values = self.program.categories[column], table[1:].tolist()
        missing, unseen = int(table[0]), int(table[self.program.unseen_code(column)])
        try:
            keys = [level.encode() for level in (*levels, self.inputs[column]["missing"])]
        except UnicodeEncodeError as error:
            raise ArgumentError(
                f"column {column!r} has a level that is no valid text: {error.object!r}", hint="replace it before the fit"
            ) from error
        return self.node(
            "LabelEncoder", self.names[column], domain=ML, keys_strings=keys, values_int64s=[*values, missing],
            default_int64=unseen,
        )  # fmt: skip

    def matrix(self, columns: Columns) -> str:
        """Return the name of a tensor of one row per column."""
        if columns not in self.joined:
            self.joined[columns] = self._joined(columns)
        return self.joined[columns]

    def _joined(self, columns: Columns) -> str:
        bases = sorted(dict.fromkeys(base for base, _ in columns), key=lambda base: not base.flat)
        starts = dict(zip(bases, np.cumsum([0, *(base.width for base in bases)]).tolist(), strict=False))
        rows = [starts[base] + row for base, row in columns]
        flat, names = [self._named(base) for base in bases if base.flat], [base.name for base in bases if not base.flat]
        if len(flat) == 1:
            names.insert(0, self.node("Unsqueeze", flat[0], np.array([0])))
        elif flat:
            names.insert(0, self.node("Reshape", self.node("Concat", *flat, axis=0), np.array([len(flat), -1])))
        name = names[0] if len(names) == 1 else self.node("Concat", *names, axis=0)
        if rows != list(range(sum(base.width for base in bases))):
            name = self.node("Gather", name, np.array(rows), axis=0)
        return name

    def row(self, column: tuple[Base, int]) -> str:
        """Return the name of a column as a vector, or as a matrix of one row if it is a row of one."""
        base, row = column
        if base.flat or base.width == 1:
            return self._named(base)
        if base not in self.divided:
            self.divided[base] = [self._name() + f"/{own}" for own in range(base.width)]
            sizes = self.array(np.ones(base.width, np.int64))
            self.nodes.append(self.helper.make_node("Split", [base.name, sizes], self.divided[base],
                                                    f"{self.prefix}node {len(self.nodes)}", axis=0))  # fmt: skip
        return self.divided[base][row]

    def _named(self, base: Base) -> str:
        if base.code is None:
            return base.name
        key = ((base, -1),)
        if key not in self.joined:
            self.joined[key] = self.encoded(base.code, np.arange(base.sizes[0] or 0))
        return self.joined[key]

    def operand(self, value: Columns | AnyArray) -> str:
        """Return the name of a matrix; constants have one column."""
        return self.array(value[0][:, None]) if isinstance(value, np.ndarray) else self.matrix(value)

    def shape(self) -> str:
        """Return the name of the shape (1, n) of one column of all rows."""
        if self.rows is None:
            first = next(iter(self.inputs.values()))["name"]
            self.rows = self.node("Concat", np.array([1]), self.node("Shape", first), axis=0)
        return self.rows

    def repeated(self, value: Columns | AnyArray) -> str:
        """Return the name of a matrix with a column per row of the data, also for constants."""
        name = self.operand(value)
        return self.node("Expand", name, self.shape()) if isinstance(value, np.ndarray) else name

    # Expressions

    def emit(self, expression: Expression) -> Columns | AnyArray:
        """Add what computes an expression and return its columns, or its value if it is constant."""
        for item in order((expression,)):
            if id(item) not in self.memo:
                args = [self.memo[id(arg)] for arg in item.args]
                self.memo[id(item)] = self._emit(item, args)
        return self.memo[id(expression)]

    def _emit(self, item: Expression, args: list[Columns | AnyArray]) -> Columns | AnyArray:
        if item.op in ("scores", "numbers", "codes"):
            return tuple((base, row) for base in self.raw[item.op] for row in range(base.width)) or np.zeros((1, 1))
        constants = [arg for arg in args if isinstance(arg, np.ndarray)]
        if len(constants) == len(args):
            return evaluate_one(item, constants, {})
        if item.op == "take":
            return tuple(args[0][column] for column in item.data)
        if item.op == "join":
            parts = [self._repeat(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
            return tuple(column for part in parts for column in part)
        if item.op == "gather" and (encoded := self._encoded(item, args[0])) is not None:
            return ((encoded, 0),)
        name = self._operation(item, args)
        base = Base(name, item.width, _sizes(item))
        return tuple((base, row) for row in range(item.width))

    def _encoded(self, item: Expression, index: Columns | AnyArray) -> Base | None:
        """Return integers that a category stands for, without its code; None if this is anything else."""
        if isinstance(index, np.ndarray):
            return None
        base, _ = index[0]
        if len(index) > 1 or base.code is None or item.type != "int":
            return None
        return Base(self.encoded(base.code, item.data[0][: base.sizes[0]]), 1, _sizes(item), flat=True)

    def _operation(self, item: Expression, args: list[Columns | AnyArray]) -> str:
        if item.op in ELEMENTWISE:
            return self._elementwise(item, args)
        if item.op == "count":
            cuts, closed = item.data
            return self._counted(ensembles.counts([(own, closed) for own in cuts]), self.operand(args[0]))
        if item.op == "where":
            return self._where(item, args)
        return str(getattr(self, f"_{item.op}")(item.data, *args))

    def _repeat(self, value: AnyArray) -> Columns:
        name, width = self.repeated(value), value.shape[1]
        sizes = tuple(int(own) + 1 if value.dtype.kind == "i" else None for own in value[0])
        return tuple((Base(name, width, sizes), row) for row in range(width))

    def _elementwise(self, item: Expression, args: list[Columns | AnyArray]) -> str:
        if item.op == "exp":
            return self._exp(item)
        names = [self.operand(arg) for arg in args]
        if item.op in TRANSCENDENTAL:
            return self._logarithm(item, names[0])
        return self.node(OPERATORS[item.op], *names)

    def _exp(self, item: Expression) -> str:
        """Return an exponential as exact as that of the C library.

        The operators Exp and Log of onnxruntime are wrong by up to 1.6 units in the last place, and the result of a row
        depends on its place among the rows; Pow and, from version 1.20 on, ReduceLogSum of a single number call the C
        library row by row. Pow raises e^512 to x / 512, which is exact: the rounding of the base, relative to it, is
        divided by 512.
        """
        power, scale = item.args[0], 1.0 / BASE_EXPONENT
        if power.op == "negative":
            power, scale = power.args[0], -scale
        scaled = self.node("Mul", self.operand(self.emit(power)), np.array([[scale]]))
        return self.node("Pow", np.array([[np.exp(BASE_EXPONENT)]]), scaled)

    def _logarithm(self, item: Expression, x: str) -> str:
        """Return a logarithm as exact as that of the C library (see `_exp`), or log(1 + x).

        ONNX has no log1p. For x = -p, a probability, log(1 - p) is enough: 1 - p is rounded by at most 2^-54 if p < 1/2 and
        exact above, so that the logarithm is wrong by at most 2^-53, and a probability after the link, whose slope is at
        most 1/4, by 2^-55 per unit of slope. For others the error of 1 + x is added to the logarithm, to the first order.
        """
        if item.op == "log":
            return self._log(x, item.width)
        one, given = np.array([[1.0]]), item.args[0]
        if given.op == "negative":
            return self._log(self.node("Sub", one, self.operand(self.emit(given.args[0]))), item.width)
        above = self.node("Add", x, one)
        lost = self.node("Sub", x, self.node("Sub", above, one))
        return self.node("Add", self._log(above, item.width), self.node("Div", lost, above))

    def _log(self, x: str, width: int) -> str:
        if width == 1:
            return self.node("ReduceLogSum", x, np.array([0]), keepdims=1)
        return self.node("ReduceLogSum", self.node("Unsqueeze", x, np.array([2])), np.array([2]), keepdims=0)

    def _where(self, item: Expression, args: list[Columns | AnyArray]) -> str:
        condition, x, y = (self.operand(arg) for arg in args)
        if item.type != "bool":
            return self.node("Where", condition, x, y)
        return self.node("Or", self.node("And", condition, x), self.node("And", self.node("Not", condition), y))

    def _counted(self, attributes: dict[str, Any], x: str) -> str:
        """Return the integers that an ensemble adds up for the columns of a matrix."""
        return self.node("Cast", self.transposed(self.ensemble(attributes, self.transposed(x))), to=self.types.INT64)

    def _count_in(self, cuts: Sequence[FloatArray], x: Columns | AnyArray, which: Columns | AnyArray) -> str:
        both = self.node("Concat", self.repeated(x), self.node("Cast", self.repeated(which), to=self.types.DOUBLE), axis=0)
        return self._counted(ensembles.counts_in(cuts), both)

    def _index_of(self, values: AnyArray, x: Columns) -> str:
        numbers = self.node("Cast", self.matrix(x), to=self.types.DOUBLE)
        return self._counted(ensembles.positions(values, len(x)), numbers)

    def _total(self, _: None, x: Columns) -> str:
        sums = self.node("CumSum", self.matrix(x), np.array(0))
        return self.node("Gather", sums, np.array([len(x) - 1]), axis=0)

    def _gather(self, tables: Sequence[AnyArray], index: Columns) -> str:
        if len(tables) == 1:
            return self.node("Gather", tables[0], self.matrix(index), axis=0)
        sizes = [len(table) for table in tables]
        if max(sizes) * len(sizes) <= MAX_PADDING * sum(sizes):
            padded = np.zeros((len(sizes), max(sizes)), tables[0].dtype)
            for own, table in zip(padded, tables, strict=True):
                own[: len(table)] = table
            return self.node("GatherElements", padded, self.matrix(index), axis=1)
        places = self.node("Add", self.matrix(index), (np.cumsum(sizes) - sizes)[:, None])
        values = self.node("GatherElements", np.concatenate(tables), self.node("Reshape", places, np.array([-1])), axis=0)
        return self.node("Reshape", values, np.array([len(sizes), -1]))

    def _walk(self, trees: CodeTrees, codes: Columns) -> str:
        # Columns that no tree tests have no size and need none.
        sizes = [base.sizes[row] or 0 for base, row in codes]
        assert all(sizes[column] for column in np.unique(trees.column)), "codes of unknown size"
        if len(trees) >= MIN_MASKED and (masked := ensembles.masks(trees, sizes)) is not None:
            return self._masked(*masked, len(trees), codes)
        attributes, sets, values = ensembles.walked(trees, sizes)
        matrix = self.matrix(codes)
        x = self.transposed(self.node("Cast", matrix, to=self.types.FLOAT))
        if sets.columns:
            own = [
                self.node("Gather", table, self.node("Gather", matrix, np.array(column), axis=0), axis=0)
                for column, table in zip(sets.columns, sets.tables, strict=True)
            ]
            x = self.node("Concat", x, *own, axis=1)
        leaf = self._counted_rows(attributes, x)
        return self.node("GatherElements", values, leaf, axis=1)

    def _counted_rows(self, attributes: dict[str, Any], x: str) -> str:
        return self.node("Cast", self.transposed(self.ensemble(attributes, x)), to=self.types.INT64)

    def _masked(self, tables: dict[int, AnyArray], values: FloatArray, trees: int, codes: Columns) -> str:
        """Return the leaf values of trees, two of which share a word of bits: one per leaf that all columns leave."""
        left = ""
        for columns, table in ensembles.joint(tables):
            first, *others = (self.row(codes[column]) for column in columns)
            for column, other in zip(columns[1:], others, strict=True):
                first = self.node("Add", self.node("Mul", first, np.array(len(tables[column]))), other)
            own = self.node("Gather", table, first, axis=0)
            left = self.node("BitwiseAnd", left, own) if left else own
        # A vector of codes has led to a matrix, a row of a matrix to one more dimension.
        left = self.node("Reshape", left, np.array([-1, (trees + 1) // 2]))
        low = self.node("Cast", left, to=self.types.INT32)
        if trees % 2:
            left = self.node("Slice", left, np.array([0]), np.array([trees // 2]), np.array([1]))
        high = self.node(
            "Cast", self.node("BitShift", left, np.array([32], np.uint64), direction="RIGHT"), to=self.types.INT32
        )
        bits = self.node("Concat", low, high, axis=1) if trees > 1 else low
        places = self.transposed(self.node("Mod", bits, np.array([[ensembles.PRIME]], np.int32)))
        return self.node("GatherElements", values, places, axis=1)

    # The model

    def _only_valid(self) -> Columns | AnyArray:
        """Replace invalid scores by valid ones, whose codes are in all tables, and return where they are valid."""
        valid = self.emit(self.program.valid)
        bases = self.raw["scores"]
        if isinstance(valid, np.ndarray) or not bases:
            return valid
        scores = self.matrix(tuple((base, 0) for base in bases))
        safe = self.node("Where", self.matrix(valid), scores, np.array([[1.0 / (len(bases) + 1)]]))
        self.raw["scores"] = [Base(safe, len(bases), (None,) * len(bases))]
        self.memo.clear()
        return valid

    def _count_inputs(self, expressions: Sequence[Expression]) -> None:
        """Count the cuts below all inputs at once."""
        given = {base for bases in self.raw.values() for base in bases}
        cuts: dict[tuple[tuple[Base, int], bytes, str], tuple[FloatArray, str]] = {}
        columns: dict[Expression, list[tuple[tuple[Base, int], bytes, str]]] = {}
        for item in order(expressions):
            if item.op == "count" and all(arg.op in ("scores", "numbers", "take", "join") for arg in order(item.args)):
                own = self.emit(item.args[0])
                if isinstance(own, np.ndarray) or any(base not in given for base, _ in own):
                    continue
                lists, closed = item.data
                columns[item] = [(column, one.tobytes(), closed) for column, one in zip(own, lists, strict=True)]
                cuts |= {key: (one, closed) for key, one in zip(columns[item], lists, strict=True)}
        if not cuts:
            return
        keys = sorted(cuts, key=lambda key: not key[0][0].flat)  # as `matrix` joins them
        name = self._counted(ensembles.counts([cuts[key] for key in keys]), self.matrix(tuple(key[0] for key in keys)))
        base = Base(name, len(keys), tuple(len(cuts[key][0]) + 2 for key in keys))
        for item, counted in columns.items():
            self.memo[id(item)] = tuple((base, keys.index(key)) for key in counted)

    def _used(self, outputs: Sequence[str]) -> list[Any]:
        """Return the nodes that outputs need."""
        needed, used = set(outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                used.append(node)
        self.initial = {key: own for key, own in self.initial.items() if own[0] in needed}
        return used[::-1]

    def model(self, *, checks: bool) -> bytes:
        """Return the serialised model."""
        helper, types, program = self.helper, self.types, self.program
        valid = self._only_valid()
        self._count_inputs((program.result, *(program.exact if checks else ())))
        result = self.emit(program.result)
        if isinstance(valid, np.ndarray):
            scores = self.repeated(result)
        else:
            scores = self.node("Where", self.matrix(valid), self.operand(result), np.array([[np.nan]]))
        for k, name in enumerate(self.outputs):
            row = scores if len(self.outputs) == 1 else self.node("Gather", scores, np.array([k]), axis=0)
            self.node("Squeeze", row, np.array([0]), output=name)
        outputs = [helper.make_tensor_value_info(name, types.DOUBLE, ["N"]) for name in self.outputs]
        extra = []
        for k, expression in enumerate(program.exact if checks else ()):
            extra.append(_free(f"exact_{k}", self.taken, self.taken))
            self.node("Transpose", self.repeated(self.emit(expression)), perm=[1, 0], output=extra[-1])
            outputs.append(helper.make_tensor_value_info(extra[-1], types.DOUBLE, ["N", expression.width]))
        inputs = [
            helper.make_tensor_value_info(
                entry["name"], types.STRING if entry["kind"] == "category" else types.DOUBLE, ["N"], _describe(entry)
            )
            for entry in self.inputs.values()
        ]
        nodes = self._used([*self.outputs, *extra])
        graph = helper.make_graph(nodes, "trueup", inputs, outputs, [own for _, own in self.initial.values()])
        domains = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
        model = helper.make_model(graph, opset_imports=domains, ir_version=IR_VERSION, producer_name="trueup")
        described = {
            "inputs": list(self.inputs.values()), "outputs": self.outputs, "checks": extra, "notes": list(program.notes)
        }  # fmt: skip
        helper.set_model_props(model, {METADATA: json.dumps(described)})
        self.onnx.checker.check_model(model)
        return bytes(model.SerializeToString())


def _sizes(item: Expression) -> tuple[int | None, ...]:
    """Return per column of an expression a number above all its integers; None if it is not known."""
    if item.op == "count":
        return tuple(len(own) + 2 for own in item.data[0])
    if item.op == "gather" and item.type == "int":
        return tuple(int(table.max()) + 1 for table in item.data)
    return (None,) * item.width


def _free(name: str, others: Collection[str], taken: set[str]) -> str:
    """Return the name, with underscores after it until it is not among others, and add it to those taken."""
    while name in others:
        name += "_"
    taken.add(name)
    return name


def _missing_marker(feature: Feature) -> str:
    """Return a text that is no level: the empty one, unless that is a level, or texts that are no level are not missing."""
    marker = "<missing>" if feature.unseen_level else ""
    while marker in feature.levels:
        marker = f"{marker}_" if marker else "missing"
    return marker


def _describe(entry: Mapping[str, Any]) -> str:
    if entry["kind"] == "category":
        return f"category {entry['column']!r}; {json.dumps(entry['missing'])} if missing"
    if entry["kind"] == "date":
        return f"date {entry['column']!r}: days since 1970-01-01, NaN if missing"
    return f"{entry['kind']} {entry['column']!r}" + ("" if entry["kind"] == "prediction" else ", NaN if missing")


def runtime_version() -> str:
    """Return the version of onnxruntime."""
    return str(require("onnxruntime", extra="onnx").__version__)
