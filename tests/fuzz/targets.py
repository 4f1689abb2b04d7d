"""What is done with each generated input, and what must hold: our errors only, and no input file changes."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import decimal
import gzip
import io
import json
import sys
import warnings
from functools import cache
from pathlib import Path

import numpy as np

import trueup as tu
from forged import GONE, changed, usable
from fuzz.inputs import GOLDEN, edit_bytes, golden_parts
from trueup import storage
from trueup.cli import main
from trueup.data.sql import column_names, read_files
from trueup.errors import FileError, TrueupError, TrueupWarning
from trueup.modelfile import KIND, MANIFEST

__all__ = ["TARGETS", "RuleViolationError", "examine", "prepare"]

# Exit codes of docs/command-line.md that a command may return here: 3 is an error in trueup, the others end by a signal.
EXIT_CODES = {0, 1, 2, 4}
OUTPUT_OPTIONS = {"-o", "--output", "--json", "--csv", "--markdown", "--report", "--held-out", "--resume"}
ROLES = ["--outcome", "y", "--prediction", "p"]


class RuleViolationError(AssertionError):
    """A rule was broken without an exception: an undocumented exit code, a traceback, a changed file."""


def examine(kind, given):
    """Run the target of a kind on an input, in the current directory; raise unless it is accepted or refused by our errors.

    Returns whether it was refused.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning of another library is not addressed to the user of trueup
        warnings.simplefilter("ignore", TrueupWarning)
        for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, UserWarning):
            warnings.simplefilter("ignore", category)  # of the libraries that make the frames
        warnings.simplefilter("ignore", TrueupWarning)
        before, refused = _files(), True
        try:
            refused = bool(TARGETS[kind](copy.deepcopy(given)))
        except TrueupError:
            pass
        except BaseException:
            _find_changes(before)  # restores the files for the next input
            raise
        problems = _find_changes(before, _outputs(given.get("words", [])))
    if problems:
        raise RuleViolationError("; ".join(problems))
    return refused


def prepare(directory):
    """Write the files that commands name."""
    random = np.random.default_rng(1)
    p = random.uniform(0.05, 0.95, 120)
    region = np.array(["x", "y", "é"], object)[random.integers(0, 3, 120)]
    rows = {"y": (random.random(120) < p).astype(int), "p": p, "a": region, "b": random.normal(size=120), "w": random.uniform(0.2, 0.8, 120),
            "id": np.arange(120) // 3, "amount": random.poisson(3, 120)}  # fmt: skip
    lines = [",".join(rows), *(",".join(map(str, row)) for row in zip(*rows.values(), strict=True))]
    (directory / "in.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({name: pa.array(column.tolist()) for name, column in rows.items()}), directory / "in.parquet")
    (directory / "broken.csv").write_bytes(b'y,p,a\n0,0.5,"a\n1,\xff,b,c\n')
    (directory / "empty.csv").write_bytes(b"")
    (directory / "mine.toml").write_text("[words]\n", encoding="utf-8")
    (directory / "folder").mkdir()
    tu.save(tu.Logistic("p", ["a", "b"]).fit(rows, rows["y"]), directory / "model.trueup")


_contents = {}  # of files by their stamp: they are read once


def _stamp(path):
    status = path.stat()
    return path.absolute(), status.st_ino, status.st_mtime_ns, status.st_size


def _files():
    """Return the stamps of the files of the current directory; outputs of the last input are deleted."""
    stamps = {}
    for path in Path().iterdir():
        if path.is_file():
            if path.name.startswith("out"):
                path.unlink()
                continue
            stamps[path] = _stamp(path)
            if stamps[path] not in _contents:
                _contents[stamps[path]] = path.read_bytes()
    return stamps


def _outputs(words):
    """Return the names of files that a command writes and does not read."""
    written = {index + 1 for index, word in enumerate(words) if word in OUTPUT_OPTIONS}
    read = [word for index, word in enumerate(words) if index not in written]
    return {
        words[index]
        for index in written
        if index < len(words) and not any(words[index] in word or "*" in word for word in read)
    }


def _find_changes(before, outputs=()):
    """Describe files that were changed or left behind; delete what commands wrote, and restore the files."""
    problems = []
    for path in Path().iterdir():
        if path not in before and path.is_file():
            if path.name.startswith(".trueup-"):
                problems.append(f"the temporary file {path.name} was left behind")
            path.unlink()
    for path, stamp in before.items():
        if not path.exists() or _stamp(path) != stamp:
            if path.name not in outputs:
                problems.append(f"the input file {path.name} was changed")
            path.write_bytes(_contents[stamp])
    return problems


# ------------------------------------------------------------------ frames


def _cell(value, kind):
    """Return a value as an element of a column of this kind, or raise one of the errors that `_column` expects."""
    number = 0.0 if value is None or isinstance(value, str) else float(value)
    match kind:
        case "object" | "mixed":
            return value
        case "text" | "category":
            return None if value is None else str(value)
        case "list":
            return [value if isinstance(value, str) else str(value)]
        case "struct":
            return {"k": str(value)}
        case "decimal":
            return decimal.Decimal(repr(number)) if abs(number) < 1e20 else None
        case "bytes":
            return str(value).encode("utf-8", "replace")
        case "day" | "time" | "zone":
            if not abs(number) < 2e5:
                return None
            zone = dt.UTC if kind == "zone" else None
            moment = dt.datetime(2000, 1, 1, tzinfo=zone) + dt.timedelta(hours=number)
            return moment.date() if kind == "day" else moment
        case "span":
            return dt.timedelta(seconds=number) if abs(number) < 1e9 else None
        case _:
            return number if value is not None else float("nan")


def _column(kind, values):
    cells = [_cell(value, kind) for value in values]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind in ("float64", "float32", "float16", "int8", "int64", "uint64", "bool", "complex"):
            array = np.array(cells, float)
            return (
                array.astype(kind)
                if kind.startswith("float")
                else np.nan_to_num(array).astype(kind.replace("complex", "complex128"))
            )
        if kind == "masked":
            return np.ma.masked_invalid(np.array(cells, float))
        if kind == "matrix":
            return np.array(cells, float)[:, None]
        if kind == "mixed":
            return cells
    array = np.empty(len(cells), object)
    for index, cell in enumerate(cells):
        array[index] = cell
    return array


def _frame(library, columns):
    """Return a frame of a library, or a dict of arrays where the library does not take such columns."""
    made = {name: _column(kind, values) for name, kind, values in columns}
    if library == "dict":
        return made
    lists = {name: column if isinstance(column, list) else column.tolist() for name, column in made.items()}
    try:
        if library == "pandas":
            import pandas as pd

            parts = [
                pd.Series(made[name] if getattr(made[name], "ndim", 1) == 1 else lists[name], name=name)
                for name, *_ in columns
            ]
            frame = pd.concat(parts, axis=1)  # has duplicate names
            if len(set(frame.columns)) == frame.shape[1]:
                for name, kind, _ in columns:
                    frame = frame.assign(**{name: frame[name].astype("category")}) if kind == "category" else frame
            return frame
        if library == "polars":
            import polars as pl

            return pl.DataFrame({name: pl.Series(name, values, strict=False) for name, values in lists.items()})
        import pyarrow as pa

        return pa.table([pa.array(lists[name]) for name, *_ in columns], names=[name for name, *_ in columns])
    except BaseException:  # noqa: BLE001  (an error, or a panic of Rust, in the library that makes the frame)
        return made


def _use_frame(given):
    frame = _frame(given["library"], given["columns"])
    before = {name: np.array(column, copy=True) for name, column in frame.items()} if isinstance(frame, dict) else None
    options = given["options"]
    try:
        match given["call"]:
            case "audit":
                if isinstance(sampling := options.get("sampling"), dict):
                    options["sampling"] = {int(key): value for key, value in sampling.items()}
                _use_audit(tu.audit(frame, outcome=given["outcome"], prediction=given["prediction"], draws=9, **options))
            case "fit":
                _use_fit(frame, given)
            case "metric":
                made = dict(zip("py", (_column(kind, values) for _, kind, values in given["columns"][:2]), strict=True))
                repr(getattr(tu.metrics, given["what"])(made["y"], made["p"]))
            case "swap_regret":
                repr(tu.swap_regret(frame, outcome=given["outcome"], prediction=given["prediction"]))
            case _:
                made = _column(given["columns"][0][1], given["columns"][0][2])
                rule = tu.decisions.best_rule(made, {"act": (0, options.get("fp", 1)), "pass": (options.get("fn", 5), 0)})
                repr(rule)
    finally:
        for name, column in (before or {}).items():
            now = np.array(frame[name], copy=True)
            if now.dtype != column.dtype or now.shape != column.shape or repr(now.tolist()) != repr(column.tolist()):
                raise RuleViolationError(f"column {name!r} of the user was changed")


def _use_audit(audit):
    repr(audit), audit._repr_html_(), audit.worst(3), audit.to_frame(), audit.overall, audit.problems
    json.dumps(audit.to_dict(), allow_nan=False)
    for finding in audit.worst(2):
        repr(finding)


def _use_fit(frame, given):
    own, name = dict(given["options"]), given["what"]
    if name in ("Platt", "Isotonic", "Histogram", "Beta", "Temperature", "Additive", "Multiplicative"):
        own = {key: own[key] for key in ("task", "unlabelled", "exclude", "logits") if key in own}
    else:
        own.setdefault("features", [column[0] for column in given["columns"][2:3]])
    if name not in ("MCGrad", "LoRe", "Platt", "Isotonic", "Histogram", "Beta", "Temperature"):
        own.pop("logits", None)
    own |= {"MCGrad": {"rounds": 1, "trees": 2}, "LSBoost": {"rounds": 1, "min_rows": 2}, "DepthTwo": {"trees": 2}}.get(
        name, {}
    )
    if name == "Grouped":
        fix = tu.Grouped(tu.Platt(given["prediction"]), given["columns"][2][0])
    else:
        fix = getattr(tu, name)(given["prediction"], **own)
    outcome = next((column for column in given["columns"] if column[0] == given["outcome"]), None)
    fix.fit(frame, _column(outcome[1], outcome[2]))
    scores = fix.predict(frame)
    if not np.isfinite(scores).all():
        raise RuleViolationError("a corrected score is not finite")
    repr(fix.explain()), repr(fix.history_), repr(fix.model_)
    stream = io.BytesIO()
    tu.save(fix, stream)
    if tu.load(stream.getvalue()).predict(frame).tobytes() != np.asarray(scores).tobytes():
        raise RuleViolationError("the saved model predicts other scores")


# ------------------------------------------------------------------ files of rows and queries


def _content(given):
    """Return the bytes of a file of rows."""
    names, lines, form = given["names"], given["lines"], given["format"]
    if form in ("json", "jsonl"):
        records = [json.dumps(dict(zip(names, map(_json_cell, line), strict=False))) for line in lines]
        text = f"[{','.join(records)}]" if form == "json" else "\n".join(records)
    else:
        text = given["end"].join(given["separator"].join(line) for line in [names, *lines])
    content = edit_bytes(text.encode(given["encoding"], "replace"), given["edits"])
    if form == "parquet":
        content = edit_bytes(Path("in.parquet").read_bytes(), given["edits"])
    return gzip.compress(content, mtime=0) if form == "csv.gz" else content


def _json_cell(text):
    try:
        return float(text) if text not in ("inf", "-inf", "nan") else text
    except ValueError:
        return text


def _use_text(given):
    path = Path(f"rows.{given['format']}")
    content = _content(given)
    path.write_bytes(content)
    try:
        return _read_rows(given, str(path), None)
    finally:
        if path.read_bytes() != content:
            raise RuleViolationError("the file of rows was changed")


def _use_query(given):
    if given["call"] == "names":
        return repr(column_names("in.csv" if given["files"] else None, given["query"])) and None
    return _read_rows(given, "in.csv" if given["files"] else None, given["query"])


def _read_rows(given, path, sql):
    """Read rows in the library or by a command; return whether they were refused."""
    if given["call"] == "read":
        read_files(path, sql=sql, text=given["text"], threads=1)
        return False
    words = [] if path is None else [path]
    words += [] if sql is None else ["--sql", sql]
    match given["call"]:
        case "predict":
            return _run(["predict", "model.trueup", *words, "-o", "out.csv", "--threads", "1", "--on-error", "nan"])
        case "decide":
            return _run(["decide", *words, "--prediction", "p", "--cost-fn", "5", "--cost-fp", "1"])
        case "fit":
            return _run(["fit", *words, *ROLES, "--method", "platt", "-o", "out.trueup"])
        case "scan":
            return _run(["audit", *words, *ROLES, "--memory", "500MB", "--threads", "1", "--json", "-"])
        case _:
            return _run(["audit", *words, *ROLES, "--min-rows", "1", "--threads", "1"])


# ------------------------------------------------------------------ command lines


def _run(words):
    """Run a command in this process; return whether it was refused."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace") for _ in range(2))
    saved, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words, "--debug"] if words[:1] != ["--version"] else words)
    finally:
        sys.stdin = saved
    out.seek(0), err.seek(0)
    printed, complaint = out.read(), err.read()
    if code not in EXIT_CODES or "Traceback" in printed + complaint:
        reason = next(
            (line for line in complaint.splitlines() if line.startswith("unexpected error")), "a traceback was printed"
        )
        error = RuleViolationError(f"exit code {code}: {reason}")
        error.add_note(complaint[-3000:])  # it names files of this machine: not for the corpus
        raise error
    if code == 2 and not complaint.strip():
        raise RuleViolationError("exit code 2 without a message")
    return code == 2


def _use_command(given):
    return _run([word for word in given["words"] if word != "--debug"])


# ------------------------------------------------------------------ model files


def forge(given):
    """Return the bytes of a golden file with the edits of an input."""
    members, manifest = golden_parts(given["golden"])
    members = dict(members)
    for action, *more in given["manifest"]:
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier edit may have removed the place
            if action == "copy":
                source = manifest
                for key in more[1]:
                    source = source[key]
                manifest = changed(manifest, more[0], copy.deepcopy(source))
            else:
                manifest = changed(manifest, more[0], GONE if action == "delete" else more[1])
    for name, action, *more in given["arrays"]:
        if name in members:
            _edit_member(members, name, action, more)
    if not given["manifest"] and not given["arrays"]:
        return edit_bytes((GOLDEN / given["golden"]).read_bytes(), given["bytes"])
    if given["manifest"]:
        members[MANIFEST] = json.dumps(manifest, separators=(",", ":")).encode()
    stream = io.BytesIO()
    storage.write(stream, members, kind=KIND)
    return stream.getvalue()


def _edit_member(members, name, action, more):
    content = members[name]
    match action:
        case "bytes":
            members[name] = edit_bytes(content, more[0])
        case "drop":
            del members[name]
        case "empty":
            members[name] = b""
        case "double":
            members[name] = content * 2
        case "rename":
            members[f"{name}x"] = members.pop(name)
        case _:
            size = int(action[1:])
            array = np.frombuffer(content[: len(content) // size * size], f"<{action}").copy()
            if len(array):
                value = (
                    more[1]
                    if action == "f8"
                    else (int(more[1]) + 2 ** (8 * size - 1)) % 2 ** (8 * size) - 2 ** (8 * size - 1)
                )
                array[more[0] % len(array)] = value
                members[name] = array.tobytes() + content[len(array) * size :]


@cache
def _golden_rows(name):
    path = (GOLDEN / name).with_suffix(".json")
    rows = json.loads(path.read_text())["rows"]
    days = {"day": np.array(rows["day"], "datetime64[D]")} if "day" in rows else {}
    return {**rows, **days}


def _use_model(given):
    content = forge(given)
    try:
        model = tu.load(content)
    except FileError as error:
        if not error.hint:
            raise RuleViolationError("the error has no hint") from error
        return True
    rows = _golden_rows(given["golden"])
    usable(model, rows)
    repr(model), repr(model.info())
    if given["call"] == "export":
        for target in ("out.sql", "out.h"):
            with contextlib.suppress(TrueupError):
                tu.export(model, target, verify=False)
    stream = io.BytesIO()
    tu.save(model, stream)
    again = tu.load(stream.getvalue())
    with contextlib.suppress(TrueupError):
        if again.predict(rows).tobytes() != model.predict(rows).tobytes():
            raise RuleViolationError("the model that was saved again predicts other scores")
    return False


TARGETS = {"model": _use_model, "frame": _use_frame, "text": _use_text, "query": _use_query, "command": _use_command}
