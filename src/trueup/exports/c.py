"""Exports to C: one header of C99 without dependencies besides the standard library, allocation or global state.

Every expression of the program becomes a local array; tables, cuts and trees are constants. Contraction to fused
multiply-add is switched off, because it would change the last bits of sums.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._temporary import temporary_directory
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.exports.program import CodeTrees, Expression, Program, ValueType

WORDS = """
alignas alignof and and_eq asm atomic auto bitand bitor bool break case catch char class compl complex const constexpr
continue decltype default delete do double else enum explicit export extern false float for friend goto if imaginary
import inline int isnan log exp fabs ceil log1p long main module mutable namespace new noexcept noreturn not not_eq NAN
NULL nullptr operator or or_eq out private protected public register reinterpret_cast requires restrict return row
short signed sizeof static static_assert struct switch template this thread_local throw true try typedef typeid
typename typeof union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
KEYWORDS = frozenset(WORDS.split())  # of C and C++, and names that the header uses
# Names that are macros: of compilers (linux is 1 in the dialects of GNU), of usual headers, and of windows.h.
MACROS = re.compile(
    r"linux|unix|i386|errno|std(in|out|err)|near|far|small|interface|EOF|BUFSIZ|RAND_MAX|INFINITY|DECIMAL_DIG"
    r"|(M|FP|FLT|DBL|LDBL|HUGE|MATH)_\w+|math_errhandling"
)
C_TYPES: dict[ValueType, str] = {"float": "double", "int": "long long", "bool": "int"}
INTEGER_TYPES = (
    ("unsigned char", 0, 2**8),
    ("short", -(2**15), 2**15),
    ("int", -(2**31), 2**31),
    ("long long", -(2**63), 2**63),
)  # the least number, and the first that is too large
FUNCTIONS = {
    "log": "log",
    "log1p": "log1p",
    "exp": "exp",
    "absolute": "fabs",
    "ceil": "ceil",
    "negative": "-",
    "logical_not": "!",
}
OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<", "less_equal": "<=", "equal": "==",
    "logical_and": "&&", "logical_or": "||",
}  # fmt: skip
LINE_WIDTH = 120
WORD_BITS = 32
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Werror")

HEAD = """\
#ifndef {guard}
#define {guard}

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "this correction needs IEEE arithmetic: compile it without -ffast-math and -ffinite-math-only"
#endif
#if FLT_EVAL_METHOD == 2 || FLT_EVAL_METHOD < 0
#error "this correction needs arithmetic in double precision"
#endif
#if defined(__clang__)
#define {macro}_EXACT _Pragma("STDC FP_CONTRACT OFF")
#else
#define {macro}_EXACT
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#elif defined(_MSC_VER)
#pragma fp_contract(off)
#endif

#ifdef __cplusplus
extern "C" {{
#endif
"""

FOOT = """
#ifdef __cplusplus
}}
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

#endif /* {guard} */
"""

# Helpers that are written if they are used.
HELPERS = {
    "below": """
/* The number of ascending cuts below x. */
static inline long long {prefix}_below(const double *cuts, long long count, double x) {{
  long long low = 0, high = count;
  while (low < high) {{
    const long long middle = (low + high) / 2;
    if (cuts[middle] < x) low = middle + 1; else high = middle;
  }}
  return low;
}}
""",
    "at_most": """
/* The number of ascending cuts that are at most x. */
static inline long long {prefix}_at_most(const double *cuts, long long count, double x) {{
  long long low = 0, high = count;
  while (low < high) {{
    const long long middle = (low + high) / 2;
    if (cuts[middle] <= x) low = middle + 1; else high = middle;
  }}
  return low;
}}
""",
    "index_of": """
/* 1 + the position of x among ascending values, 0 if it is not among them. */
static inline long long {prefix}_index_of(const long long *values, long long count, long long x) {{
  long long low = 0, high = count;
  while (low < high) {{
    const long long middle = (low + high) / 2;
    if (values[middle] < x) low = middle + 1; else high = middle;
  }}
  return low < count && values[low] == x ? low + 1 : 0;
}}
""",
    "walk": """
/* A node of a tree: a code at most cut goes left or, if there are words, a code in the set of bits that begins at cut.
   Children are nodes, or complements of leaves. */
typedef struct {{ int left, right, cut; short column, words; }} {prefix}_node;

static inline double {prefix}_walk(const {prefix}_node *nodes, const unsigned *sets, const double *leaves, int root,
                                   const int *codes) {{
  while (root >= 0) {{
    const {prefix}_node *node = nodes + root;
    const int code = codes[node->column];
    int left = code <= node->cut;
    if (node->words) left = code / 32 < node->words && ((sets[node->cut + code / 32] >> (code % 32)) & 1u);
    root = left ? node->left : node->right;
  }}
  return leaves[~root];
}}
""",
}


def write_c(program: Program, *, prefix: str = "trueup") -> str:
    """Return the header; functions, types and macros begin with ``prefix``."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", prefix) or prefix in KEYWORDS:
        raise ArgumentError(
            f"prefix must be a C identifier; got {prefix!r}", hint="use letters, digits and underscores", parameter="prefix"
        )
    return _HeaderWriter(program, prefix).text()


def find_compiler() -> str | None:
    """Return the path of a C compiler: that of the environment variable CC, or the first that is installed."""
    wanted = os.environ.get("CC")
    names = (wanted,) if wanted else COMPILERS
    return next((found for found in map(shutil.which, names) if found is not None), None)


def run_c(text: str, program: Program, columns: Mapping[str, AnyArray], *, prefix: str = "trueup") -> FloatArray:
    """Compile a header and return its scores of some rows, then the values of ``program.exact``, shape (rows, values).

    Categories are texts, None if missing, and are encoded by the functions of the header.
    """
    compiler = find_compiler()
    assert compiler is not None
    width = program.result.width + sum(item.width for item in program.exact)
    names = field_names(program)
    rows = len(next(iter(columns.values())))
    texts = [columns[column].tolist() for column in program.categories]
    numbers = [np.asarray(columns[column], np.float64) for column in names if column not in program.categories]
    lines = [f"  row.{names[column]} = next_number();" for column in names if column not in program.categories]
    lines += [f"  row.{names[column]} = {prefix}_{names[column]}_code(next_text());" for column in program.categories]
    main = MAIN.format(prefix=prefix, rows=rows, width=width, fields="\n  ".join(lines))
    payload, size = np.column_stack([*numbers, np.zeros((rows, 0))]).astype("<f8").tobytes(), 8 * len(numbers)
    known = [{text: _text_record(text) for text in set(own)} for own in texts]
    records = [[payload[at * size : (at + 1) * size] for at in range(rows)]]
    records += [[place[text] for text in own] for place, own in zip(known, texts, strict=True)]
    with temporary_directory() as folder:
        source, binary = Path(folder, "check.c"), Path(folder, "check")
        Path(folder, "model.h").write_text(text, encoding="utf-8")
        source.write_text(main, encoding="utf-8")
        command = [compiler, *FLAGS, f"-D{prefix.upper()}_CHECKS", "-o", str(binary), str(source), "-lm"]
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (the words are ours)
        if compiled.returncode:
            raise ArgumentError(f"{compiler} does not compile the header: {compiled.stderr.strip()[:500]}")
        stream = b"".join(record for row in zip(*records, strict=True) for record in row)
        output = subprocess.run([str(binary)], input=stream, capture_output=True, check=True).stdout  # noqa: S603
    return np.frombuffer(output, "<f8").reshape(rows, width).astype(np.float64)


MAIN = """\
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

static double next_number(void) {{
  double x;
  if (fread(&x, sizeof x, 1, stdin) != 1) exit(1);
  return x;
}}

/* A text: its length as a double (-1 for none), then its bytes. */
static const char *next_text(void) {{
  static char *text = NULL;
  const double length = next_number();
  if (length < 0) return NULL;
  text = (char *)realloc(text, (size_t)length + 1);
  if (text == NULL || fread(text, 1, (size_t)length, stdin) != (size_t)length) exit(1);
  text[(size_t)length] = 0;
  return text;
}}

int main(void) {{
  for (long i = 0; i < {rows}; i++) {{
    {prefix}_row row;
    double out[{width}];
  {fields}
    {prefix}_predict_all(&row, out);
    if (fwrite(out, sizeof *out, {width}, stdout) != {width}) return 1;
  }}
  (void)next_text;
  return 0;
}}
"""


def _text_record(text: str | None) -> bytes:
    data = b"" if text is None else text.encode("utf-8", "surrogatepass")
    return np.array([-1.0 if text is None else len(data)], "<f8").tobytes() + data


def field_names(program: Program) -> dict[str, str]:
    """Return the C identifier of each input column: predictions, then features; a column may be both."""
    columns = dict.fromkeys([*program.schema.prediction, *(feature.name for feature in program.schema.features)])
    taken: set[str] = set()
    names = {}
    for column in columns:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", column).strip("_")
        plain = plain if plain and not plain[0].isdigit() else f"column_{plain}".rstrip("_")
        name, number = f"{plain}_" if plain in KEYWORDS or MACROS.fullmatch(plain) else plain, 1
        while name in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name)
        names[column] = name
    return names


class _HeaderWriter:
    """Writes the header of one program."""

    def __init__(self, program: Program, prefix: str) -> None:
        self.program, self.prefix = program, prefix
        self.fields = field_names(program)
        self.helpers: set[str] = set()
        self.body: list[str] = []
        self.places: dict[Expression, int] = {}
        self.tables: dict[bytes, str] = {}

    def text(self) -> str:
        program, prefix = self.program, self.prefix
        for item in program.ordered(*program.exact):
            self.places[item] = len(self.places)
            self._declare(item)
        macro = prefix.upper()
        lines = [f"  out[{c}] = {self.read(program.valid, 0)} ? {self.read(program.result, c)} : NAN;"
                 for c in range(program.result.width)]  # fmt: skip
        checks = [self.read(item, c) for item in program.exact for c in range(item.width)]
        lines += [f"#ifdef {macro}_CHECKS"] if checks else []
        lines += [f"  out[{program.result.width + at}] = {value};" for at, value in enumerate(checks)]
        lines += ["#endif"] if checks else []
        parts = [
            self._comment(), HEAD.format(guard=f"{macro}_H", macro=macro), self._row_type(), *self._lookups(),
            *(HELPERS[helper].format(prefix=prefix) for helper in HELPERS if helper in self.helpers),
            f"\n/* Write the corrected scores of a row to out, {program.result.width} in all; NAN if it is invalid. */\n"
            f"static inline void {prefix}_predict_all(const {prefix}_row *row, double *out) {{\n  {macro}_EXACT\n",
            "\n".join(self.body), "\n", "\n".join(lines), "\n  (void)row;\n}\n",
        ]  # fmt: skip
        if program.result.width == 1:
            parts.append(
                f"\n/* Return the corrected score of a row; NAN if its score is invalid. */\n"
                f"static inline double {prefix}_predict(const {prefix}_row *row) {{\n"
                f"  double out[{1 + len(checks)}];\n  {prefix}_predict_all(row, out);\n  return out[0];\n}}\n"
            )
        return "".join([*parts, FOOT.format(guard=f"{macro}_H")])

    def _comment(self) -> str:
        """Return the comment at the top: how to call the header, and notes."""
        result = (
            f"{self.prefix}_predict(&row)" if self.program.result.width == 1 else f"{self.prefix}_predict_all(&row, out)"
        )
        lines = [
            "A correction of scores, written by trueup.",
            f"Fill a {self.prefix}_row and call {result}. Missing numbers are NAN, dates are days since",
            f"1970-01-01, and categories are codes from the functions {self.prefix}_..._code (NULL is missing).",
            *self.program.notes,
        ]
        return "/* " + "\n   ".join(_inert(line) for line in lines) + " */\n"

    def _row_type(self) -> str:
        levels = self.program.categories
        lines = [f"  {'int' if column in levels else 'double'} {field}; /* {_inert(column)} */"
                 for column, field in self.fields.items()]  # fmt: skip
        lines = lines or ["  char unused;"]
        return f"\ntypedef struct {{\n{chr(10).join(lines)}\n}} {self.prefix}_row;\n"

    def _lookups(self) -> Iterable[str]:
        """Yield per categorical column a function from a level to its code, by binary search."""
        for column, levels in self.program.categories.items():
            ordered = sorted((level.encode("utf-8", "surrogatepass"), code) for code, level in enumerate(levels))
            if any(b"\0" in text for text, _ in ordered):
                raise ArgumentError(
                    f"a level of {column!r} contains the character NUL, which ends a string in C",
                    hint="export the model to ONNX or SQL",
                )
            texts = ",\n    ".join(_c_string(text) for text, _ in ordered) or '""'
            codes = _wrapped([str(code) for _, code in ordered] or ["0"])
            function, unseen = f"{self.prefix}_{self.fields[column]}_code", self.program.unseen_code(column) - 1
            yield f"""
/* The code of a level of {_inert(column)} in UTF-8; -1 for NULL, {unseen} for unseen levels. */
static inline int {function}(const char *level) {{
  static const char *const levels[] = {{
    {texts}}};
  static const int codes[] = {{{codes}}};
  int low = 0, high = {len(ordered)};
  if (level == NULL) return -1;
  while (low < high) {{
    const int middle = (low + high) / 2, order = strcmp(levels[middle], level);
    if (order == 0) return codes[middle];
    if (order < 0) low = middle + 1; else high = middle;
  }}
  return {unseen};
}}
"""

    def read(self, item: Expression, column: int) -> str:
        """Return the C expression of one column of a value."""
        column = 0 if item.width == 1 else column
        if item.op == "constant":
            return _literal(item.data[column])
        if item.op == "take":
            return self.read(item.args[0], item.data[column])
        return f"v{self.places[item]}[{column}]"

    def _declare(self, item: Expression) -> None:
        """Append the computation of an expression to the body; constants and takes are read where they are used."""
        if item.op in ("constant", "take"):
            return
        values = f"v{self.places[item]}"
        self.body.append(f"  {C_TYPES[item.type]} {values}[{max(item.width, 1)}];")
        if item.op == "walk":
            self._walk(item, values)
        elif item.op == "total":
            columns = [self.read(item.args[0], column) for column in range(item.args[0].width)]
            zero = "0.0" if item.type == "float" else "0"
            self.body += [f"  {values}[0] = {zero};", *(f"  {values}[0] += {column};" for column in columns)]
        else:
            self.body += [f"  {values}[{column}] = {self._column(item, column)};" for column in range(item.width)]

    def _column(self, item: Expression, column: int) -> str:
        """Return the C expression that computes one column."""
        op, inputs = item.op, self.program
        if op in ("scores", "numbers"):
            return f"row->{self.fields[(inputs.schema.prediction if op == 'scores' else inputs.numbers)[column]]}"
        if op == "codes":
            name, levels = list(inputs.categories.items())[column]
            field = f"row->{self.fields[name]}"
            return f"{field} >= 0 && {field} < {len(levels)} ? {field} + 1 : 0" if levels else "0"
        if op == "join":
            for arg in item.args:
                if column < arg.width:
                    return self.read(arg, column)
                column -= arg.width
        if op == "gather":
            return f"{self._table(item.data[column], item.type)}[{self.read(item.args[0], column)}]"
        if op == "count":
            cuts, closed = item.data
            self.helpers.add(helper := "below" if closed == "right" else "at_most")
            x, own = self.read(item.args[0], column), cuts[column]
            counted = f"{self.prefix}_{helper}({self._table(own, 'float')}, {len(own)}, {x})" if len(own) else "0"
            return f"isnan({x}) ? {len(own) + 1} : {counted}"
        if op == "count_in":
            return self._count_in(item)
        if op == "index_of":
            self.helpers.add(op)
            x = self.read(item.args[0], column)
            return f"{self.prefix}_index_of({self._table(item.data, 'int', wide=True)}, {len(item.data)}, {x})"
        return self._elementwise(item, [self.read(arg, column) for arg in item.args])

    def _elementwise(self, item: Expression, args: Sequence[str]) -> str:
        op = item.op
        if op == "where":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        if op in ("minimum", "maximum"):
            return f"{args[0]} {'<' if op == 'minimum' else '>'} {args[1]} ? {args[0]} : {args[1]}"
        if op == "isnan":
            return f"isnan({args[0]}) ? 1 : 0"
        if op in FUNCTIONS:
            return f"{FUNCTIONS[op]}({args[0]})"
        return f"{args[0]} {OPERATORS[op]} {args[1]}"

    def _count_in(self, item: Expression) -> str:
        """Return the number of cuts below a number, among those from one place of a table to the next."""
        self.helpers.add("below")
        x, which = (self.read(arg, 0) for arg in item.args)
        ends = np.cumsum([0, *map(len, item.data)], dtype=np.int64)
        cuts, at = self._table(np.concatenate([np.zeros(0), *item.data]), "float"), self._table(ends, "int")
        return f"{self.prefix}_below({cuts} + {at}[{which}], {at}[{which} + 1] - {at}[{which}], {x})"

    def _walk(self, item: Expression, values: str) -> None:
        """Append the walk of all trees: nodes as constants, codes in an array.

        Codes of missing numbers are above all cuts: nodes that send them left test a copy of the code in which they are -1.
        """
        self.helpers.add("walk")
        trees: CodeTrees = item.data
        codes, source = f"{values}_codes", item.args[0]
        read = [f"(int){self.read(source, column)}" for column in range(source.width)]
        copies: dict[int, int] = {}
        words: list[int] = []
        nodes = []
        for node, members in enumerate(trees.members):
            column, cut, size = int(trees.column[node]), int(trees.cut[node]), 0
            if members is not None:
                own = _bitset(members) or [0]
                cut, size = len(words), len(own)
                words += own
            elif trees.missing_left[node]:
                if column not in copies:
                    copies[column] = len(read)
                    read.append(f"{read[column]} == {trees.missing[node]} ? -1 : {read[column]}")
                column = copies[column]
            nodes.append(f"{{{trees.left[node]}, {trees.right[node]}, {cut}, {column}, {size}}}")
        self.body.append(f"  const int {codes}[] = {{{_wrapped(read)}}};")
        leaves, roots = self._table(trees.value, "float"), self._table(trees.root, "int", signed=True)
        self.body += [
            f"  static const {self.prefix}_node {values}_nodes[] = {{{_wrapped(nodes or ['{-1, -1, 0, 0, 0}'])}}};",
            f"  static const unsigned {values}_sets[] = {{{_wrapped([f'{word}u' for word in words] or ['0u'])}}};",
            f"  for (int i = 0; i < {len(trees)}; i++)",
            f"    {values}[i] = {self.prefix}_walk({values}_nodes, {values}_sets, {leaves}, {roots}[i], {codes});",
        ]

    def _table(self, values: AnyArray, kind: ValueType, *, wide: bool = False, signed: bool = False) -> str:
        """Declare constants, once, and return their name; integers have the shortest type unless ``wide``."""
        if kind == "float":
            c_type, texts = "double", [_literal(value) for value in values]
        else:
            low, high = (int(values.min(initial=0)), int(values.max(initial=0)))
            fitting = (own for own, least, limit in INTEGER_TYPES if least <= low and high < limit)
            c_type = "long long" if wide else "int" if signed else next(fitting)
            texts = [_literal(value) for value in values]
        key = f"{c_type} ".encode() + values.tobytes()
        if key not in self.tables:
            self.tables[key] = f"t{len(self.tables)}"
            self.body.append(f"  static const {c_type} {self.tables[key]}[] = {{{_wrapped(texts or ['0'])}}};")
        return self.tables[key]


def _bitset(members: Iterable[int]) -> list[int]:
    words = [0] * (max(members, default=-1) // WORD_BITS + 1)
    for code in members:
        words[code // WORD_BITS] |= 1 << (code % WORD_BITS)
    return words


def _literal(value: Any) -> str:
    """Return a number as a C literal, with the digits that give the same float back."""
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    if isinstance(value, (int, np.integer)):
        return f"{int(value)}" if abs(int(value)) < 2**31 else f"{int(value)}LL"
    if np.isinf(value):  # a cut above all numbers divides them from missing ones
        return "INFINITY" if value > 0 else "-INFINITY"
    return repr(float(value))


def _wrapped(items: Sequence[str]) -> str:
    """Join items by commas, in lines of at most LINE_WIDTH characters."""
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) + 2 > LINE_WIDTH and line:
            lines.append(line)
            line = ""
        line += f"{item}, "
    return ("\n    ".join([*lines, line])).rstrip(", ")


def _c_string(data: bytes) -> str:
    """Return bytes as a C string literal: all but letters, digits and spaces as octal escapes."""
    return (
        '"'
        + "".join(chr(byte) if (chr(byte).isalnum() and byte < 128) or byte == 32 else f"\\{byte:03o}" for byte in data)
        + '"'
    )


def _inert(text: str) -> str:
    """Return a text that neither ends a comment nor continues a line."""
    shown = "".join(character if character.isprintable() and ord(character) < 128 else "?" for character in text)
    return shown.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/").replace("??", "? ")
