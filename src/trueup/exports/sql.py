"""A program as SQL: a SELECT in the dialect of DuckDB, PostgreSQL, BigQuery or Spark.

**Layers.** Each column of an expression is a SQL expression. One that is used more than once becomes a column of a layer,
a common table expression that selects from the layer before it; others are written where they are used. Nothing is computed
twice, and the text grows with the program. Layers are numbered by what they need, so that they are few.

**Missing values.** NaN becomes NULL as soon as a number is read, and an invalid score does, so that NULL is the only
missing value in later layers. Comparisons with NULL are not true, as those with NaN are not.

**Size.** A text longer than the limit is divided into statements, which are run in their order in one session: entries of
arrays and levels of categories become rows of constants in temporary views, several if need be, and layers become a chain
of temporary views (in BigQuery: temporary tables). No permission to create tables is needed. The last statement is the
SELECT. Expressions of the layers are cut into columns so short that each statement stays below the limit.
"""

# ruff: noqa: S608  Names and texts of users go through `identifier` and `text` of the dialect.

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import MAX_INTEGER, check_choice, check_integer
from trueup.data import sql as duck
from trueup.errors import ArgumentError
from trueup.exports.columns import LARGEST_NUMBER, SMALLEST_SCORE, ColumnGraph, ScalarColumn, TreePart, lower_columns
from trueup.exports.dialects import DIALECTS, Dialect, chunks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.exports.program import Program

ROW_NUMBER = "trueup_row"
SHORTEST_LIMIT = 8_000
LEVELS_IN_CASE = 8  # more levels are joined: in DuckDB a CASE of 16 took twice as long as a join
CELLS_IN_PLACE = 16  # arrays that stay literals in a script of several statements
CHARACTERS_OF_NODE = 60  # about the length of a comparison with a cut, or of a node of a tree
DEEPEST_EXPRESSION = 64
INPUTS = ("score", "number", "code")
REPEATING = ("count", "known", "flush", "bounded", "steps", "tree", "ceil")  # operations whose text has an operand twice
MAX_FLOAT = float(np.finfo(np.float64).max)
# The SQL of operations on texts that stand for themselves: names, function calls, CASE, or in parentheses.
FORMS = {
    "subtract": "({} - {})",
    "multiply": "({} * {})",
    "divide": "({} / {})",
    "minimum": "LEAST({}, {})",
    "maximum": "GREATEST({}, {})",
    "negative": "(-{})",
    "absolute": "abs({})",
    "log": "ln({})",
    "exp": "exp({})",
    "less": "({} < {})",
    "less_equal": "({} <= {})",
    "equal": "({} = {})",
    "isnan": "({} IS NULL)",
    "logical_and": "({} AND {})",
    "logical_or": "({} OR {})",
    "logical_not": "CASE WHEN {} THEN FALSE ELSE TRUE END",
    "where": "CASE WHEN {} THEN {} ELSE {} END",
    "guard": "CASE WHEN {} THEN {} END",
    "flush": "CASE WHEN abs({0}) < {smallest} THEN {zero} ELSE {0} END",
    "bounded": "CASE WHEN abs({0}) <= {max} THEN LEAST(GREATEST({0}, {low}), {high}) END",
}


def write_sql(
    program: Program,
    *,
    dialect: str = "duckdb",
    table: str = "scores",
    keep: Sequence[str] | None = None,
    checks: bool = False,
    limit: int = 200_000,
) -> str:
    """Return SQL that selects the columns ``keep`` and the corrected scores from a table.

    Parameters
    ----------
    program : Program
        The correction.
    dialect : {"duckdb", "postgres", "bigquery", "spark"}
        The dialect of SQL.
    table : str
        The name of the table; dots separate database, schema and table.
    keep : sequence of str, optional
        Columns to select, by default those of the predictions and features.
    checks : bool
        Whether to select the values that are the same in every target, as exact_0, exact_1, ....
    limit : int
        The largest number of characters of a statement; a longer text is divided into several statements.
    """
    return ";\n\n".join(write_statements(program, dialect=dialect, table=table, keep=keep, checks=checks, limit=limit))


def write_statements(
    program: Program,
    *,
    dialect: str = "duckdb",
    table: str = "scores",
    keep: Sequence[str] | None = None,
    checks: bool = False,
    limit: int = 200_000,
) -> list[str]:
    """Return the statements of `write_sql`, which are run in their order in one session; the last one is the SELECT."""
    check_choice("dialect", dialect, tuple(DIALECTS))
    check_integer("limit", limit, SHORTEST_LIMIT)
    schema = program.schema
    kept = (*schema.prediction, *(feature.name for feature in schema.features)) if keep is None else tuple(keep)
    DIALECTS[dialect].check_names([*schema.prediction, *(feature.name for feature in schema.features)])
    widths = sum(item.width for item in program.exact) if checks else 0
    names = [*kept, *schema.score_names, *(f"exact_{at}" for at in range(widths))]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ArgumentError(
            f"two columns of the result would be called {twice[0]!r}",
            hint="name the columns that the statement returns beside the scores: {keep}",
            settings={"keep": ...},
        )
    writer = _StatementWriter(program, DIALECTS[dialect], table, kept, names, limit)
    whole = writer.statement()
    return [whole] if len(whole) <= limit else writer.script()


def run_sql(text: str, columns: Mapping[str, AnyArray], table: str) -> FloatArray:
    """Run SQL in DuckDB's dialect on these columns; return the numbers it selects, in the order of the rows, NaN for NULL.

    The text must keep one column, `ROW_NUMBER`, which is added to the columns.
    """
    with duck.connect(None) as con, duck.duckdb_errors(None):
        rows = np.arange(len(next(iter(columns.values()))))
        con.register("trueup_input", {f"c{at}": column for at, column in enumerate((rows, *columns.values()))})
        listed = (duck.quote(name, '"') for name in (ROW_NUMBER, *columns))
        selected = ", ".join(f"c{at} AS {name}" for at, name in enumerate(listed))
        con.execute(f"CREATE TEMP TABLE {DIALECTS['duckdb'].table(table)} AS SELECT {selected} FROM trueup_input")
        *before, last = con.extract_statements(text)
        for statement in before:
            con.execute(statement)
        found = con.execute(last).fetchnumpy()
    order = np.argsort(np.asarray(found.pop(ROW_NUMBER)))
    return np.column_stack([np.ma.filled(np.ma.asarray(column, np.float64), np.nan)[order] for column in found.values()])


def engine_version() -> str:
    """Return the version of DuckDB."""
    return version("duckdb")


class _Relation(NamedTuple):
    """A common table expression."""

    name: str
    query: str


class _Select(NamedTuple):
    """The SELECT of a layer, and the arrays that it uses."""

    name: str
    query: str
    arrays: frozenset[Any]


class _Item(NamedTuple):
    """A column of a SELECT, and the arrays that it uses."""

    name: str
    text: str
    arrays: frozenset[Any]


class _Array(NamedTuple):
    """An array that is no literal, by its number."""

    number: int
    values: AnyArray
    kind: str


class _Layer(NamedTuple):
    """Columns that a layer adds, and those of earlier layers that it passes on."""

    added: list[ScalarColumn]
    passed: list[ScalarColumn]


class _StatementWriter:
    """The columns of a program, arranged in layers, as text of one dialect."""

    def __init__(
        self, program: Program, dialect: Dialect, table: str, kept: Sequence[str], names: Sequence[str], limit: int
    ) -> None:
        self.program, self.dialect, self.limit = program, dialect, limit
        self.table, self.kept = dialect.table(table), [dialect.identifier(name) for name in kept]
        self.prefix = "trueup_"
        while self.prefix in table.lower():
            self.prefix += "_"
        self.largest_text = limit // 8
        graph = ColumnGraph(
            first=dialect.first, raises=dialect.raises, largest=max(8, self.largest_text // CHARACTERS_OF_NODE)
        )
        outputs = lower_columns(program, graph)
        finals = [*outputs.results, *outputs.exact][: len(names) - len(kept)]
        if outputs.valid.op != "constant":
            finals = [graph.make("guard", column.type, (outputs.valid, column)) for column in finals]
        self.finals = list(zip(finals, map(dialect.identifier, names[len(kept) :]), strict=True))
        self.names: dict[ScalarColumn, str] = {}
        self.arrays: dict[Any, _Array] = {}  # outside the text, by their content
        self.used_arrays: set[Any] = set()  # by the column that is being written
        numbers = {
            "smallest": SMALLEST_SCORE,
            "zero": 0.0,
            "max": MAX_FLOAT,
            "low": -LARGEST_NUMBER,
            "high": LARGEST_NUMBER,
        }
        self.bounds = {name: dialect.number(value) for name, value in numbers.items()}
        self.level_types = {"k": dialect.text_type, "c": dialect.bigint}
        self.longest_literal = dialect.longest_literal
        self.inputs: list[ScalarColumn] = []
        self.layers = self._arrange(finals)

    # The arrangement of columns in layers

    def _arrange(self, finals: Sequence[ScalarColumn]) -> list[_Layer]:
        """Choose the columns of layers, and the layer of each."""
        ordered = _ordered(finals)
        self._choose_names(ordered)
        level: dict[ScalarColumn, int] = {}  # the number of the layer from which a column can be used
        for column in ordered:
            steps = [level[arg] + (arg in self.names) for arg in column.args]
            level[column] = 0 if column.op in INPUTS else max([1, *steps])
        self.inputs = [column for column in ordered if column.op in INPUTS]
        last: dict[ScalarColumn, int] = {}
        end = 1 + max((level[column] for column in self.names), default=0)
        for column, needed in self._atoms(ordered, finals).items():
            for atom in needed:
                at = end if column in finals and column not in self.names else level[column]
                last[atom] = max(last.get(atom, 0), at)
        for column in finals:
            if column in self.names:
                last[column] = end
        layers = []
        for at in range(end):
            new = [column for column in ordered if column in self.names and level[column] == at]
            old = [column for column in ordered if column in self.names and level[column] < at < last[column]]
            layers.append(_Layer(new, old))
        return layers

    def _choose_names(self, ordered: Sequence[ScalarColumn]) -> None:
        """Name the inputs, columns that are used more than once, and parts of expressions that are too long or too deep."""
        uses: Counter[ScalarColumn] = Counter()
        for column in ordered:
            for arg in column.args:
                uses[arg] += 2 if column.op in REPEATING else 1
        size: dict[ScalarColumn, int] = {}
        depth: dict[ScalarColumn, int] = {}
        for column in ordered:
            if column.op in INPUTS or (uses[column] > 1 and column.op != "constant"):
                self._name(column)
            own = _own_size(column)
            args = sorted(
                dict.fromkeys(arg for arg in column.args if arg not in self.names and arg.op != "constant"),
                key=lambda arg: size[arg],
                reverse=True,
            )
            for arg in args:
                if own + sum(size[other] for other in args if other not in self.names) > self.largest_text or (
                    depth[arg] > DEEPEST_EXPRESSION
                ):
                    self._name(arg)
            inline = [arg for arg in column.args if arg not in self.names]
            size[column] = own + sum(size[arg] for arg in inline)
            depth[column] = 1 + max((depth[arg] for arg in inline), default=0)

    def _atoms(
        self, ordered: Sequence[ScalarColumn], finals: Sequence[ScalarColumn]
    ) -> dict[ScalarColumn, list[ScalarColumn]]:
        """Return the named columns that the text of each named or final column has."""
        found: dict[ScalarColumn, list[ScalarColumn]] = {}
        for column in ordered:
            if column not in self.names and column not in finals:
                continue
            stack, atoms = list(column.args), dict[ScalarColumn, None]()
            while stack:
                arg = stack.pop()
                if arg in self.names:
                    atoms[arg] = None
                else:
                    stack.extend(arg.args)
            found[column] = list(atoms)
        return found

    def _name(self, column: ScalarColumn) -> None:
        self.names.setdefault(column, f"v{len(self.names)}")

    # The text of columns

    def text(self, column: ScalarColumn) -> str:
        """Return the name of a column of an earlier layer, or its expression."""
        return self.names[column] if column in self.names else self.expression(column)

    def expression(self, column: ScalarColumn) -> str:
        """Return the SQL of a column, in parentheses where an operation beside it could tear it apart."""
        args, sql = column.args, self.dialect
        match column.op:
            case "constant":
                return self._constant(column.type, column.data)
            case "add":
                first = self.text(args[0])
                if args[0].op == "add" and args[0] not in self.names:
                    first = first[1:-1]  # additions are made from left to right
                return f"({first} + {self.text(args[1])})"
            case "count":
                return self._count(column)
            case "gather":
                return sql.element(self._array(column.data, column.type), self.text(args[0]))
            case "steps":
                ends, values = column.data
                written, index = [self._constant(column.type, value) for value in values], self.text(args[0])
                tests = [f"WHEN {index} <= {end} THEN {value}" for end, value in zip(ends, written, strict=True)]
                return f"CASE {' '.join(tests[:-1])} ELSE {written[-1]} END"
            case "tree":
                return self._tree(column.data, column.data.root, args)
            case "known" | "ceil":
                return str(getattr(sql, column.op)(self.text(args[0])))
            case "divide" if args[1].op != "constant":
                return f"({sql.division.format(*map(self.text, args))})"
            case "multiply" if column.type == "int":
                return f"({self.text(args[0])} * {sql.cast(self.text(args[1]), sql.bigint)})"
        return FORMS[column.op].format(*map(self.text, args), **self.bounds)

    def _constant(self, kind: str, value: Any) -> str:
        if kind == "bool":
            return "TRUE" if value else "FALSE"
        return self.dialect.number(value) if kind == "float" else self.dialect.integer(value)

    def _count(self, column: ScalarColumn) -> str:
        """Return the number of cuts below x: by a function of the dialect, or comparisons by bisection."""
        cuts, closed, missing = column.data
        x, most = self.text(column.args[0]), len(cuts) + 1 if missing else len(cuts)
        counted = self.dialect.counted(cuts, closed)
        if counted is not None:
            return self.dialect.count(x, self._array(counted, "float"), most)
        sign, written = "<" if closed == "left" else "<=", [self._constant("float", cut) for cut in cuts.tolist()]

        def between(low: int, high: int) -> str:
            if low == high:
                return str(low)
            middle = (low + high) // 2
            return (
                f"CASE WHEN {x} {sign} {written[middle]} THEN {between(low, middle)} ELSE {between(middle + 1, high)} END"
            )

        found = between(0, len(cuts))
        return f"CASE WHEN {x} IS NULL THEN {most} ELSE {found} END" if missing else found

    def _tree(self, part: TreePart, node: int, args: Sequence[ScalarColumn]) -> str:
        """Return nested choices for the nodes of a tree."""
        trees = part.trees
        if node < 0:
            return self._constant("float", float(trees.value[~node]))
        if node in part.parts and node != part.root:
            return self.text(args[part.parts[node]])
        left, right = (self._tree(part, int(side[node]), args) for side in (trees.left, trees.right))
        if node in part.bits:
            word, bit = part.bits[node]
            return f"CASE WHEN ({self.text(args[word])} & {bit}) <> 0 THEN {left} ELSE {right} END"
        code = self.text(args[part.codes[int(trees.column[node])]])
        cut, missing, members = int(trees.cut[node]), int(trees.missing[node]), trees.members[node]
        if members is not None:
            test = _range(code, members)
        elif missing < 0 or not trees.missing_left[node]:
            test = f"{code} <= {cut}"
        else:  # no code is higher than that of missing numbers
            test, left, right = f"{code} BETWEEN {cut + 1} AND {missing - 1}", right, left
        return f"CASE WHEN {test} THEN {left} ELSE {right} END"

    def _array(self, values: AnyArray, kind: str) -> str:
        """Return an array as a literal, or by its name in the relation of arrays."""
        if len(values) <= self.longest_literal:
            return self._literal(values, kind)
        key = kind, values.tobytes()
        number = self.arrays.setdefault(key, _Array(len(self.arrays), values, kind)).number
        self.used_arrays.add(key)
        name = f"{self.prefix}arrays"
        return f"{name}.a{number}" if self.dialect.joins_arrays else f"(SELECT a{number} FROM {name})"

    def _literal(self, values: AnyArray, kind: str) -> str:
        wide = values.dtype.kind == "i" and len(values) and np.abs(values).max() > MAX_INTEGER
        sql = self.dialect
        return sql.array(values, sql.double if kind == "float" else sql.bigint if wide else sql.integer_type)

    # Statements

    def statement(self) -> str:
        """Return everything as one statement."""
        levels = [(f"{self.prefix}levels_{at}", rows) for at, rows in self._levels().items()]
        relations = [_Relation(name, self.dialect.rows(self.level_types, rows)) for name, rows in levels]
        layers = self._selects(None)
        if self.arrays:
            listed = ", ".join(f"{self._literal(own.values, own.kind)} AS a{own.number}" for own in self.arrays.values())
            relations.append(_Relation(f"{self.prefix}arrays", f"SELECT {listed}"))
        return _with([*relations, *layers[:-1]], layers[-1].query, self.dialect.materialized)

    def script(self) -> list[str]:
        """Return statements of limited size, the last of which selects the results."""
        sql, most = self.dialect, self.limit // 2
        self.longest_literal, self.arrays = CELLS_IN_PLACE, {}
        layers = self._selects(most)
        statements: list[str] = []
        for at, rows in self._levels().items():
            statements += self._stored(f"{self.prefix}levels_{at}", self.level_types, rows)
        for kind in ("float", "int"):
            cells = [
                f"({own.number}, {place}, {self._constant(kind, value)})"
                for own in self.arrays.values() if own.kind == kind
                for place, value in enumerate(own.values.tolist())
            ]  # fmt: skip
            if cells:
                types = {"a": sql.bigint, "i": sql.bigint, "v": sql.double if kind == "float" else sql.bigint}
                statements += self._stored(f"{self.prefix}cells_{kind}", types, cells)
        group: list[_Select] = []
        for place, layer in enumerate(layers):
            group.append(layer)
            last = place == len(layers) - 1
            if last or sum(len(own.query) for own in group) + len(layers[place + 1].query) > most:
                text = _with([*self._collected(group), *group[:-1]], group[-1].query, sql.materialized)
                statements += [text] if last else sql.create(layer.name, text)
                group = []
        return statements

    def _stored(self, name: str, types: Mapping[str, str], rows: Sequence[str]) -> list[str]:
        """Return statements that make rows of constants known by a name."""
        blocks = chunks(rows, self.limit - 1_000)
        names = [f"{name}_part_{at}" for at in range(len(blocks))]
        statements = [
            statement
            for own, block in zip(names, blocks, strict=True)
            for statement in self.dialect.create(own, self.dialect.rows(types, block))
        ]
        union = " UNION ALL ".join(f"SELECT * FROM {own}" for own in names)
        return statements + self.dialect.create(name, union)

    def _collected(self, group: Sequence[_Select]) -> list[_Relation]:
        """Return the relation of the arrays that some layers use, collected from their cells."""
        used = set().union(*(own.arrays for own in group))
        arrays = [own for key, own in self.arrays.items() if key in used]
        name, parts = f"{self.prefix}arrays", []
        for kind in ("float", "int"):
            listed = ", ".join(f"{self.dialect.collect(own.number)} AS a{own.number}" for own in arrays if own.kind == kind)
            if listed:
                parts.append(f"(SELECT {listed} FROM {self.prefix}cells_{kind}) AS {kind}_arrays")
        return [_Relation(name, f"SELECT * FROM {' CROSS JOIN '.join(parts)}")] if parts else []

    def _levels(self) -> dict[int, list[str]]:
        """Return the levels of the categories that are joined, as rows of constants."""
        return {
            column.data: [f"({self.dialect.text(level)}, {code})" for level, code in self._known_levels(column.data)]
            for column in self.inputs
            if column.op == "code" and self._is_joined(column.data)
        }

    def _known_levels(self, at: int) -> list[tuple[str, int]]:
        column, levels = list(self.program.categories.items())[at]
        return [(level, code) for code, level in enumerate(levels, 1) if self.dialect.can_hold(level, column)]

    def _is_joined(self, at: int) -> bool:
        return len(self._known_levels(at)) > LEVELS_IN_CASE

    def _input(self, column: ScalarColumn) -> str:
        """Return the SQL of an input, read from the table."""
        sql, schema, at = self.dialect, self.program.schema, column.data
        if column.op == "score":
            return sql.cast(f"t.{sql.identifier(schema.prediction[at])}", sql.double)
        if column.op == "number":
            feature = next(own for own in schema.features if own.name == self.program.numbers[at])
            name = f"t.{sql.identifier(feature.name)}"
            return sql.days(name) if feature.kind == "date" else sql.cast(name, sql.double)
        feature = list(self.program.categories)[at]
        name, unseen = sql.cast(f"t.{sql.identifier(feature)}", sql.text_type), self.program.unseen_code(feature)
        other = f"CASE WHEN {name} IS NULL THEN 0 ELSE {unseen} END" if unseen else "0"
        if self._is_joined(at):
            return f"COALESCE({self.prefix}levels_{at}.c, {other})"
        tests = " ".join(f"WHEN {sql.text(level)} THEN {code}" for level, code in self._known_levels(at))
        return f"CASE {name} {tests} ELSE {other} END" if tests else other

    def _selects(self, most: int | None) -> list[_Select]:
        """Return the SELECT of each layer and of the results; layers longer than ``most`` are several."""
        kept = [f"k{at}" for at in range(len(self.kept))]
        selects: list[_Select] = []

        def add(items: Sequence[str], source: str, block: Sequence[_Item] = (), fence: str | None = None) -> None:
            arrays = frozenset[Any]().union(*(item.arrays for item in block))
            joined = f"\nCROSS JOIN {self.prefix}arrays" if arrays and self.dialect.joins_arrays else ""
            end = self.dialect.fence if fence is None else fence
            query = f"SELECT {', '.join(items) or '1 AS nothing'}\nFROM {source}{joined}{end}"
            selects.append(_Select(f"{self.prefix}{len(selects)}", query, arrays))

        first = [f"t.{name} AS {key}" for name, key in zip(self.kept, kept, strict=True)]
        add([*first, *(f"{self._input(column)} AS {self.names[column]}" for column in self.inputs)], self._source())
        available = [self.names[column] for column in self.inputs]
        for layer in self.layers[1:]:
            block: list[_Item] = []
            earlier: list[str] = []
            for column in layer.added:
                item = self._item(column, self.names[column])
                if most is not None and block and sum(len(own.text) for own in block) + len(item.text) > most:
                    add([*kept, *available, *earlier, *(own.text for own in block)], selects[-1].name, block)
                    earlier += [own.name for own in block]
                    block = []
                block.append(item)
            passed = [self.names[column] for column in layer.passed]
            add([*kept, *passed, *earlier, *(own.text for own in block)], selects[-1].name, block)
            available = [*passed, *earlier, *(own.name for own in block)]
        last = [self._item(column, name) for column, name in self.finals]
        named = [f"{key} AS {name}" for key, name in zip(kept, self.kept, strict=True)]
        add([*named, *(own.text for own in last)], selects[-1].name, last, fence="")
        return selects

    def _item(self, column: ScalarColumn, name: str) -> _Item:
        """Return a column of a SELECT."""
        self.used_arrays = set()
        written = (
            self.names[column] if name not in self.names.values() and column in self.names else self.expression(column)
        )
        return _Item(name, f"{written} AS {name}", frozenset(self.used_arrays))

    def _source(self) -> str:
        """Return the table, and the relations of levels that are joined to it."""
        sql, categories = self.dialect, list(self.program.categories)
        joins = "".join(
            f"\nLEFT JOIN {self.prefix}levels_{at} ON {self.prefix}levels_{at}.k = "
            + sql.cast(f"t.{sql.identifier(categories[at])}", sql.text_type)
            for at in self._levels()
        )
        return f"{self.table} AS t{joins}"


def _with(relations: Sequence[_Relation | _Select], query: str, materialized: str) -> str:
    """Return a query after common table expressions; the relation of arrays is computed once."""
    written = [f"{own.name} AS{materialized if own.name.endswith('arrays') else ''} (\n{own.query}\n)" for own in relations]
    return f"WITH {', '.join(written)}\n{query}" if written else query


def _range(code: str, members: frozenset[int]) -> str:
    """Return whether a code is in a range."""
    if not members:
        return "FALSE"
    low, high = min(members), max(members)
    if low == 0:
        return f"{code} <= {high}"
    return f"{code} = {low}" if low == high else f"{code} BETWEEN {low} AND {high}"


def _ordered(outputs: Sequence[ScalarColumn]) -> list[ScalarColumn]:
    """Return all columns behind the outputs, operands first."""
    found: dict[ScalarColumn, None] = {}
    stack = [(output, False) for output in reversed(outputs)]
    while stack:
        column, seen = stack.pop()
        if seen:
            found[column] = None
        elif column not in found:
            stack.append((column, True))
            stack.extend((arg, False) for arg in reversed(column.args))
    return list(found)


def _own_size(column: ScalarColumn) -> int:
    """Return about how many characters an operation adds to those of its operands."""
    if column.op == "count":
        return CHARACTERS_OF_NODE * len(column.data[0]) + 40
    if column.op == "tree":
        return CHARACTERS_OF_NODE * int(column.data.nodes) + 40
    return 40
