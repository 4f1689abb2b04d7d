"""Strategies for the inputs of each target. An input is plain JSON, so that one that failed can be kept as a file."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from forged import places
from trueup import storage
from trueup.cli.parser import OPTIONS, VERBS
from trueup.modelfile import KIND, MANIFEST

GOLDEN = Path(__file__).parents[1] / "golden"
NUMBERS = [
    0,
    1,
    -1,
    2,
    0.5,
    0.1,
    -0.0,
    1e-320,
    1e300,
    -1e308,
    2.0**53,
    2.0**63,
    1e-16,
    float("nan"),
    float("inf"),
    -float("inf"),
]
INTEGERS = [0, 1, 2, 7, -1, 127, 255, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1]
WORDS = [
    "",
    "a",
    "b",
    "A",
    " a",
    "a ",
    "nan",
    "NA",
    "None",
    "0",
    "1",
    "1e5",
    "é",
    "日本",
    "\u202e",
    "a,b",
    'q"',
    "a\nb",
    "a=b",
    "\x00",
]
WORDS += ["'", "y", "p", "long" * 200, "\ud800", "🙂", "True", "2024-01-31", "-", "--", "a & b", "{}", "[a]", "%s", "<b>"]
STRANGE = [
    None,
    [],
    {},
    [[]],
    "",
    "NaN",
    "x",
    True,
    False,
    0,
    -1,
    1,
    2,
    2.5,
    1e308,
    -1e308,
    1e-320,
    10**30,
    ["a", "a"],
    {"a": None},
]


def _few(values, most):
    return st.lists(st.sampled_from(values), max_size=most)


numbers = st.sampled_from(NUMBERS) | st.floats(0, 1) | st.floats()
words = st.sampled_from(WORDS) | st.text(max_size=6)


# ------------------------------------------------------------------ frames

KINDS = [
    "float64",
    "float32",
    "float16",
    "int8",
    "int64",
    "uint64",
    "bool",
    "object",
    "text",
    "category",
    "day",
    "time",
    "zone",
]
KINDS += ["span", "complex", "bytes", "list", "struct", "decimal", "masked", "mixed", "matrix"]
CALIBRATORS = ["Platt", "Isotonic", "Histogram", "Beta", "Temperature", "Additive", "Multiplicative", "Logistic", "MCGrad"]
CALIBRATORS += ["LSBoost", "HKRR", "Multiaccuracy", "Grouped", "LoRe", "DepthTwo"]
METRICS = [
    "ece",
    "mce",
    "ace",
    "brier",
    "log_loss",
    "ks",
    "roc_auc",
    "pr_auc",
    "smooth_ece",
    "ecce",
    "ecce_pvalue",
    "reliability",
]
METRICS += ["hosmer_lemeshow", "slope_intercept", "observed_expected", "corp", "mmce", "debiased_ece", "gini"]


@st.composite
def frames(draw):
    """Draw a frame with odd columns, and a call that reads it."""
    rows = draw(st.sampled_from([0, 1, 2, 3, 12, 12, 12, 40]))
    plain = draw(st.integers(0, 4))  # how many of the columns are what a user would pass
    columns = []
    for index, name in enumerate(["p", "y", "a", "w", "id"]):
        odd = index >= plain
        kind = draw(st.sampled_from(KINDS)) if odd and draw(st.booleans()) else ("text" if name == "a" else "float64")
        columns.append(
            [draw(words) if odd and draw(st.integers(0, 4)) == 0 else name, kind, draw(_values(name, odd, rows))]
        )
    if draw(st.integers(0, 7)) == 0:
        columns.append(draw(st.sampled_from(columns)))  # a duplicate name
    call = draw(st.sampled_from(["audit", "audit", "fit", "fit", "metric", "decide", "swap_regret"]))
    names = [column[0] for column in columns]
    name = st.sampled_from([*names, *names, None, "missing"])
    options = {
        "audit": {
            "by": st.lists(name, max_size=2) | name, "weight": name, "cluster": name, "depth": st.sampled_from([0, 1, 2, 3, "2"]),
            "task": st.sampled_from(["auto", "binary", "regression", "multiclass", "x"]),
            "bins": st.sampled_from([0, 1, 2, 10, 10**9, {"w": [0.5]}, {"w": [float("nan")]}, {"a": 3}, "x"]),
            "min_rows": st.sampled_from([0, 1, 2, 50, -1]), "tolerance": st.sampled_from([None, 0.02, "10%", -1, "x", float("inf")]),
            "adjust": st.sampled_from(["holm", "bh", "max", "by", "x"]), "categorical": _few(names, 2),
            "unlabelled": st.sampled_from(["error", "drop"]), "family": st.sampled_from([None, "poisson", "gamma", "tweedie", "x"]),
            "alpha": st.sampled_from([0.05, 0, 1, float("nan"), 1e-300]), "max_cells": st.sampled_from([1, 5, 0, 10**18]),
            "sampling": st.sampled_from([None, {"1": 0.5, "0": 0.1}, {}, {"1": 0}]),
        },
        "fit": {"features": _few(names, 2), "task": st.sampled_from(["auto", "binary", "regression"]), "exclude": _few(names, 1),
                "unlabelled": st.sampled_from(["error", "drop"]), "logits": st.booleans(), "categorical": _few(names, 1)},
        "metric": {}, "decide": {"fn": numbers, "fp": numbers}, "swap_regret": {},
    }[call]  # fmt: skip
    chosen = {key: draw(value) for key, value in options.items() if draw(st.integers(0, 3)) == 0}
    return {
        "library": draw(st.sampled_from(["dict", "pandas", "polars", "pyarrow"])), "columns": columns, "call": call,
        "outcome": names[1], "prediction": names[0] if draw(st.integers(0, 5)) else draw(st.lists(name, max_size=3)),
        "what": draw(st.sampled_from(CALIBRATORS if call == "fit" else METRICS)), "options": chosen,
    }  # fmt: skip


def _values(name, odd, rows):
    if odd:
        pool = numbers | words | st.sampled_from([None, True, *INTEGERS])
        return st.lists(st.sampled_from(INTEGERS) if name == "id" else pool, min_size=rows, max_size=rows)
    pool = {"p": st.floats(0, 1), "y": st.sampled_from([0, 1]), "a": st.sampled_from(["a", "b", None])}.get(
        name, st.floats(0, 9)
    )
    return st.lists(pool, min_size=rows, max_size=rows)


# ------------------------------------------------------------------ files of rows

CELLS = [
    "0",
    "1",
    "0.5",
    "0.25",
    "",
    "NA",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "yes",
    "no",
    "a",
    "b",
    '"a"',
    '"a',
    'a"',
    '""',
    '"a,b"',
    '"a\nb"',
]
CELLS += [
    "é",
    "日本",
    "\x00",
    "\ufeff",
    " 1 ",
    "1,5",
    "2024-01-31",
    "31/01/2024",
    "true",
    "0x10",
    "1_000",
    "#",
    "'",
    "\\",
    "🙂",
    "{}",
    "x" * 5000,
]
CELLS += [
    "18446744073709551615",
    "-9223372036854775809",
    "1" * 400,
    "01234",
    "+1",
    ".",
    "-",
    "=1+1",
    "\t",
    ";",
    "|",
    "\r",
    "\x1a",
]


@st.composite
def texts(draw):
    """Draw a file of rows: CSV or JSON with odd cells, in an encoding, damaged at some bytes; and a command that reads it."""
    names = ["y", "p", *draw(st.lists(st.sampled_from(["a", "b", "w", "A", "", "p", "a b", '"q"', "é"]), max_size=3))]
    odd = draw(st.sampled_from([0, 0, 1, 4]))
    lines = [
        [draw(st.sampled_from(CELLS)) if draw(st.integers(0, 9)) < odd else draw(st.sampled_from(CELLS[:4])) for _ in names]
        for _ in range(draw(st.sampled_from([0, 1, 2, 5, 20])))
    ]
    if odd and draw(st.booleans()):
        lines = [line[: draw(st.integers(0, len(line)))] for line in lines]
    return {
        "format": draw(st.sampled_from(["csv", "csv", "csv", "tsv", "txt", "json", "jsonl", "csv.gz", "parquet"])),
        "names": names, "lines": lines, "separator": draw(st.sampled_from([",", ",", ",", ";", "\t", "|", " "])),
        "end": draw(st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n", ""])),
        "encoding": draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "utf-32", "cp500"])),
        "edits": draw(byte_edits(3)) if draw(st.booleans()) else [],
        "call": draw(st.sampled_from(["read", "read", "read", "audit", "scan", "predict", "decide", "fit"])),
        "text": draw(_few(["a", "p", "missing"], 1)),
    }  # fmt: skip


@st.composite
def byte_edits(draw, most):
    """Draw edits of bytes: where (a share of the length), what, and with which bytes."""
    edit = st.tuples(
        st.floats(0, 1), st.sampled_from(["flip", "insert", "delete", "cut", "repeat", "write"]),
        st.sampled_from(["\x00", "\xff", "\xfe\xff", '"', "\n", ",", "PK\x05\x06", "\x7f" * 9]) | st.binary(max_size=8).map(lambda b: b.decode("latin-1")),
    )  # fmt: skip
    return [list(item) for item in draw(st.lists(edit, min_size=1, max_size=most))]


def edit_bytes(content, edits):
    """Return the content with `byte_edits` made."""
    for share, action, text in edits:
        at, payload = int(share * len(content)), text.encode("latin-1")
        content = {
            "flip": lambda c, at, b: c[:at] + bytes([c[at] ^ (1 << len(b) % 8)]) + c[at + 1 :] if at < len(c) else c,
            "insert": lambda c, at, b: c[:at] + b + c[at:],
            "delete": lambda c, at, b: c[:at] + c[at + 1 + len(b) :],
            "cut": lambda c, at, _: c[:at],
            "repeat": lambda c, at, b: c[:at] + c[at : at + 40] * (1 + len(b)) + c[at:],
            "write": lambda c, at, b: c[:at] + b + c[at + len(b) :],
        }[action](content, at, payload)
    return content


# ------------------------------------------------------------------ queries

SQL_WORDS = [
    "SELECT",
    "*",
    "FROM",
    "data",
    "'in.csv'",
    "WHERE",
    "y",
    "p",
    "a",
    ",",
    "(",
    ")",
    "1",
    "0",
    "NULL",
    "AS",
    "p",
    "y",
    '"',
    "'",
]
SQL_WORDS += [
    ";",
    "--",
    "/*",
    "*/",
    "UNION ALL",
    "LIMIT",
    "ORDER BY",
    "GROUP BY",
    "sum(p)",
    "random()",
    "CAST(p AS VARCHAR)",
    "[1]",
    "{'a': 1}",
]
SQL_WORDS += [
    "interval 1 day",
    "'x'::BLOB",
    "1/0",
    "nan",
    "'inf'::DOUBLE",
    "?",
    "$1",
    "{0}",
    "c0",
    "rows",
    "WITH t AS (SELECT 1 AS y, 0.5 AS p)",
]
SQL_WORDS += [
    "VALUES (0, 0.5, 'a')",
    "CREATE TABLE t AS",
    "DROP VIEW data",
    "PRAGMA version",
    "DESCRIBE",
    "PIVOT",
    "COPY data TO 'out.csv'",
]
SQL_WORDS += [
    "SET threads = 1",
    "uuid()",
    "DATE '2024-01-31'",
    "TIME '10:00'",
    "1::HUGEINT",
    "99999999999999999999",
    "é",
    "\x00",
    "\ud800",
]
SQL_WORDS += [
    "ATTACH ':memory:' AS m",
    "BEGIN",
    "ROLLBACK",
    "DETACH memory",
    "EXPLAIN",
    "'no.parquet'",
    "CHECKPOINT",
    "map {1: 2}",
    "EXCLUDE (p)",
]
QUERIES = [
    "SELECT y, p, a FROM data",
    "FROM data",
    "SELECT * FROM 'in.csv'",
    "SELECT y, p FROM data WHERE a = 'a' ORDER BY p;",
]
QUERIES += [
    "CREATE TABLE t AS FROM data; SELECT y, p FROM t",
    "SELECT y, avg(p) AS p, a FROM data GROUP BY ALL",
    "FROM data LIMIT 0",
]


@st.composite
def queries(draw):
    """Draw a query: a valid one with words changed, or words."""
    known = draw(st.sampled_from(QUERIES)).split(" ") if draw(st.integers(0, 7)) else []
    for _ in range(draw(st.sampled_from([1, 0, 0, 1, 2, 4])) if known else draw(st.integers(1, 12))):
        at, word = draw(st.integers(0, len(known))), draw(st.sampled_from(SQL_WORDS) | st.text(max_size=3))
        known[at : at + draw(st.integers(0, 1))] = [word]
    call = draw(st.sampled_from(["read", "read", "read", "read", "names", "audit", "scan", "predict"]))
    return {
        "query": " ".join(known),
        "files": draw(st.integers(0, 3)) > 0,
        "call": call,
        "text": draw(_few(["a", "p", "missing"], 1)),
    }


# ------------------------------------------------------------------ model files


@cache
def golden_names():
    """Return the golden files, relative to their directory."""
    return sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.trueup"))


@cache
def golden_parts(name):
    """Return the members of a golden file, and its manifest."""
    members = storage.read(GOLDEN / name, kind=KIND)
    return members, json.loads(members[MANIFEST].decode("utf-8", "surrogatepass"))


@cache
def _golden_edits(name):
    """Return strategies of edits of a golden file: of its manifest, and of its arrays."""
    place = st.sampled_from([list(place) for place in places(golden_parts(name)[1]) if place])
    member = st.sampled_from([member for member in golden_parts(name)[0] if member != MANIFEST] or [MANIFEST])
    value = st.sampled_from(STRANGE) | st.integers(-3, 70) | st.floats(allow_nan=False, allow_infinity=False) | words
    manifest = st.one_of(
        st.tuples(st.just("set"), place, value),
        st.tuples(st.just("delete"), place),
        st.tuples(st.just("copy"), place, place),
    )
    array = st.one_of(
        st.tuples(member, st.just("f8"), st.integers(0, 9999), numbers),
        st.tuples(member, st.sampled_from(["i1", "i2", "i4", "i8"]), st.integers(0, 9999), st.sampled_from(INTEGERS)),
        st.tuples(member, st.just("bytes"), byte_edits(2)),
        st.tuples(member, st.sampled_from(["drop", "empty", "double", "rename"])),
    )
    return st.lists(manifest, min_size=1, max_size=2), st.lists(array, min_size=1, max_size=3)


@st.composite
def models(draw):
    """Draw a golden file with edits: of the manifest and the arrays, with new checksums, or of the bytes of the file."""
    name = draw(st.sampled_from(golden_names()))
    manifest, arrays = _golden_edits(name)
    kind = draw(st.sampled_from(["manifest", "manifest", "arrays", "arrays", "both", "bytes"]))
    return {
        "golden": name,
        "manifest": draw(manifest) if kind in ("manifest", "both") else [],
        "arrays": draw(arrays) if kind in ("arrays", "both") else [],
        "bytes": draw(byte_edits(4)) if kind == "bytes" else [],
        "call": draw(st.sampled_from(["score"] * 9 + ["export"])),
    }


# ------------------------------------------------------------------ command lines

COMMANDS = [
    "audit in.csv --outcome y --prediction p --by a,b",
    "audit in.parquet --outcome y --prediction p --by a --depth 1 --bins 4 --min-rows 5 --json -",
    "audit in.csv --outcome y --prediction p --weight w --cluster id --tolerance 10% -o out.md -o out.csv --quiet",
    "audit in.csv --outcome y --prediction p --against w --fail-if miscalibrated --adjust bh",
    "audit --sql SELECT$*$FROM$'in.csv' --outcome y --prediction p",
    "audit in.csv --outcome y --prediction p -o out.html --profile credit --title T",
    "audit in.csv --outcome y --prediction p --memory 500MB --by a",
    "audit in.csv --outcome amount --prediction w --task regression --family poisson",
    "fit in.csv --outcome y --prediction p --method platt -o out.trueup",
    "fit in.csv --outcome y --prediction p --method isotonic --by a --cross-validate -o out.trueup --json -",
    "fit in.parquet --outcome y --prediction p --method logistic --features a,b --held-out out.csv -o out.trueup",
    "fit in.csv --prediction p --method prior --sampling 1,0.1 -o out.trueup",
    "predict model.trueup in.csv -o out.csv",
    "predict model.trueup in.parquet -o out.parquet --as q --only --on-error nan",
    "predict model.trueup --sql FROM$'in.csv' -o out.jsonl",
    "explain model.trueup",
    'explain model.trueup --row {"p":0.2,"a":"x"} --details --json -',
    "export model.trueup -o out.sql --table loans --keep a --no-verify",
    "export model.trueup -o out.h --prefix loans --no-verify",
    "decide in.csv --prediction p --cost-fn 500 --cost-fp 20 --by a --json -",
    "decide in.csv --prediction p --cost-fn 5 --cost-fp 2 --labelled in.parquet --outcome y --capacity 30 -o out.csv",
    "decide in.csv --prediction p --action a:5,0 --action b:0,1 --capacity a=3 --fixed-cost b=2",
    "completion bash",
    "--version",
]
VALUES = [
    "",
    "-",
    "--",
    "0",
    "1",
    "-1",
    "2",
    "3",
    "0.5",
    "nan",
    "inf",
    "1e400",
    "y",
    "p",
    "a",
    "b",
    "w",
    "id",
    "amount",
    "missing",
    "a,b",
    ",",
    "a=",
    "=",
    "p,w",
]
VALUES += [
    "in.csv",
    "in.parquet",
    "model.trueup",
    "broken.csv",
    "empty.csv",
    "no.csv",
    "folder",
    "*.csv",
    "out.csv",
    "out.md",
    "out.json",
    "out.html",
]
VALUES += [
    "é",
    "'",
    '"',
    "[",
    "{}",
    '{"p": NaN}',
    "null",
    "a:1,2",
    "a=5",
    "a=1:2:3",
    "10%",
    "100000%",
    "500MB",
    "1e3GB",
    "holm",
    "binary",
    "max",
    "x" * 3000,
]
VALUES += [
    "SELECT 1",
    "FROM 'in.csv'",
    "\udcff",
    "\ud800",
    "\u202e",
    "a\nb",
    "mine.toml",
    "trueup",
    "1,0.1",
    "0,0",
    "estimate",
    "general",
    "99999999999999999999",
    "-5e-324",
]
# Left out: what compiles for minutes, opens every core, or is asked to simulate for hours.
LONG = {"--rows", "--draws", "--threads", "--cache", "--repeats", "FILE", "MODEL", "MODELS", "SHELL"}


@st.composite
def command_lines(draw):
    """Draw a command line: a valid one with words inserted, replaced, repeated and left out."""
    words_ = [word.replace("$", " ") for word in draw(st.sampled_from(COMMANDS)).split(" ")]
    verb = VERBS.get(words_[0])
    known = [getattr(use, "name", use) for uses in verb.groups.values() for use in uses] if verb else []
    options = [name for name in known or OPTIONS if name not in LONG]
    value = st.sampled_from(VALUES) | st.text(st.characters(exclude_characters="/\x00~"), max_size=5)
    for _ in range(draw(st.sampled_from([1, 1, 2, 4]))):
        at = draw(st.integers(min(1, len(words_)), len(words_)))
        match draw(st.sampled_from(["option", "option", "switch", "value", "value", "drop", "double", "spell"])):
            case "option":
                words_[at:at] = [draw(st.sampled_from(options)), draw(value)]
            case "switch":
                words_[at:at] = [draw(st.sampled_from(options))]
            case "value":
                words_[at : at + 1] = [draw(value)]
            case "drop":
                del words_[at : at + 1]
            case "double":
                words_[at:at] = words_[at - 1 : at]
            case _:
                words_[at - 1 : at] = ["".join(word[: draw(st.integers(0, len(word)))]) for word in words_[at - 1 : at]]
    return {"words": words_}


STRATEGIES = {"model": models(), "frame": frames(), "text": texts(), "query": queries(), "command": command_lines()}
