"""Exports of a model to ONNX, SQL and C, each checked against the model row by row before it is written."""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trueup import storage
from trueup._validate import check_choice
from trueup.calibrators.model import Model
from trueup.data.columns import days_of
from trueup.errors import ArgumentError
from trueup.exports.certificate import Certificate, certify
from trueup.exports.lower import lower

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trueup._types import AnyArray
    from trueup.exports.certificate import Runner
    from trueup.exports.program import Program

__all__ = ["Certificate", "export"]

TARGETS = {".onnx": "onnx", ".sql": "sql", ".h": "c"}
CERTIFICATE_SUFFIX = ".parity.json"
DIALECT_NOTE = "Checked in DuckDB's dialect; the text in the dialect {0} is written from the same expressions."


class _Artifact(NamedTuple):
    """What is written, and how it is run to check it."""

    content: bytes
    checked_with: str
    runners: tuple[Runner, ...]
    notes: tuple[str, ...] = ()


def export(
    model: Any, path: str | os.PathLike[str], *, to: str | None = None, dialect: str = "duckdb", table: str = "scores",
    keep: Sequence[str] = (), prefix: str = "trueup", verify: bool = True,
) -> Certificate | None:  # fmt: skip
    """Write a correction as an ONNX graph, an SQL statement or a C header, and check that it computes the same scores.

    Before anything is written, the export is run on rows at every cut of the model and one unit of the last place beside
    it, on missing, unseen, extreme and invalid values and on random rows. Sums of tables and trees must be identical.
    Targets differ in the last bit of logarithms and exponentials: scores must be within 4e-16 of those of the model, those
    of logits and of several classes within 1e-13, and real outcomes identical. Otherwise `ExportError` is raised, and
    nothing is written. The comparison is written beside the export, as ``path + ".parity.json"``.

    Parameters
    ----------
    model : Model or fitted calibrator
        Of any method but LoRe.
    path : str or path
    to : {"onnx", "sql", "c"}, optional
        By default by the extension of ``path``: .onnx, .sql or .h.
    dialect : {"duckdb", "postgres", "bigquery", "spark"}
        Of SQL.
    table : str
        The table or view whose rows an SQL statement scores.
    keep : sequence of str
        The columns that an SQL statement returns beside the scores, such as an identifier; by default those of the model.
    prefix : str
        What the functions and types of a C header begin with; distinct ones let one program use several corrections.
    verify : bool
        Check the export, which needs onnxruntime for ONNX and a C compiler for C. Without the check no certificate is
        written.

    Returns
    -------
    Certificate, or None without ``verify``

    Examples
    --------
    >>> import tempfile
    >>> import trueup as tu
    >>> loans = tu.simulate.lending(10_000, seed=0)
    >>> fix = tu.MCGrad("prediction", ["region", "age"]).fit(loans, loans["outcome"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     certificate = tu.export(fix, f"{folder}/loans.sql", table="loans")
    >>> certificate.largest_difference <= 4e-16
    True
    """
    target = _find_target(path, to)
    fitted = model if isinstance(model, Model) else getattr(model, "model_", None)
    if not isinstance(fitted, Model):
        raise ArgumentError(
            f"export takes a fitted calibrator or a Model; got {type(model).__name__}",
            hint='call fit(frame, outcome) first; a model file is read by tu.load("model.trueup")',
        )
    storage.check_writable(path, example=f"model{next(suffix for suffix, own in TARGETS.items() if own == target)}")
    program = lower(fitted)
    if target == "onnx":
        artifact = _onnx(program, verify=verify)
    elif target == "sql":
        artifact = _sql(program, dialect, table, keep, verify=verify)
    else:
        artifact = _c(program, prefix, verify=verify)
    certificate = None
    if verify:
        certificate = certify(fitted, program, target, artifact.checked_with, artifact.runners, artifact.notes)
    storage.replace_file(path, [artifact.content], example="model.onnx")
    beside = Path(f"{os.fspath(path)}{CERTIFICATE_SUFFIX}")
    if certificate is not None:
        storage.write_text(beside, [certificate.to_json()])
    else:
        beside.unlink(missing_ok=True)  # that of an export before
    return certificate


def _find_target(path: str | os.PathLike[str], to: str | None) -> str:
    if to is not None:
        check_choice("to", to, tuple(TARGETS.values()))
        return to
    suffix = Path(path).suffix.lower()
    if suffix not in TARGETS:
        raise ArgumentError(
            f"the extension {suffix!r} names no target of an export",
            hint="write model.onnx, model.sql or model.h, or name it: {to}",
            parameter="to",
            settings={"to": "onnx"},
        )
    return TARGETS[suffix]


def _onnx(program: Program, *, verify: bool) -> _Artifact:
    from trueup.exports import onnx

    content = onnx.write_onnx(program)
    if not verify:
        return _Artifact(content, "", ())
    checked = onnx.write_onnx(program, checks=True)
    runners = tuple(_with_days(partial(onnx.run_onnx, own)) for own in (content, checked))
    return _Artifact(content, f"onnxruntime {onnx.runtime_version()}", runners)


def _sql(program: Program, dialect: str, table: str, keep: Sequence[str], *, verify: bool) -> _Artifact:
    from trueup.exports import sql

    text = sql.write_sql(program, dialect=dialect, table=table, keep=tuple(keep) or None)
    content = text.encode("utf-8", "surrogatepass")
    if not verify:
        return _Artifact(content, "", ())
    number = [sql.ROW_NUMBER]
    checked = [sql.write_sql(program, table=table, keep=number, checks=own) for own in (False, True)]
    runners = tuple(partial(sql.run_sql, own, table=table) for own in checked)
    notes = () if dialect == "duckdb" else (DIALECT_NOTE.format(dialect),)
    return _Artifact(content, f"duckdb {sql.engine_version()}", runners, notes)


def _c(program: Program, prefix: str, *, verify: bool) -> _Artifact:
    from trueup.exports import c

    text = c.write_c(program, prefix=prefix)
    if not verify:
        return _Artifact(text.encode(), "", ())
    compiler = c.find_compiler()
    if compiler is None:
        raise ArgumentError(
            "the check of a C header needs a C compiler, and none is installed",
            hint="install gcc or clang, or leave the check out: verify=False, or --no-verify",
        )
    runner = _with_days(lambda columns: c.run_c(text, program, columns, prefix=prefix))
    return _Artifact(text.encode(), _version_of(compiler), (runner,))


def _with_days(run: Callable[[Mapping[str, AnyArray]], Any]) -> Runner:
    """Return a runner that passes dates as days since 1970-01-01."""

    def runner(columns: Mapping[str, AnyArray]) -> Any:
        return run({name: days_of(own) if own.dtype.kind == "M" else own for name, own in columns.items()})

    return runner


def _version_of(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.splitlines()[0] if done.stdout else shlex.join([compiler])
