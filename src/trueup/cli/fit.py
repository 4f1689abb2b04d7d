"""`trueup fit`: fit a correction of the scores in files or a query."""

from __future__ import annotations

import importlib
import inspect
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.patches.map import PatchMap
from trueup.cli import console, io
from trueup.cli.next_steps import after_fit, option_name
from trueup.cli.options import MATRIX, METHODS, PRIOR
from trueup.cli.output import (
    corrections_tables,
    describe_evaluation,
    fit_notes,
    model_data,
    patches_table,
    show_page,
    table_notes,
)
from trueup.cli.parser import is_model
from trueup.cli.predict import model_columns, text_columns
from trueup.data.chunks import format_to_write
from trueup.data.frame import read
from trueup.data.table import HELD_OUT_SUFFIX
from trueup.data.values import format_rows, to_probabilities
from trueup.errors import ArgumentError, ColumnError, DataError, TrainingRowsWarning, TrueupError
from trueup.modelfile import load, save

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from trueup._types import FloatArray
    from trueup.calibrators.model import Model
    from trueup.cli.output import TextTable
    from trueup.data.table import Schema, Table

CURVES = ("isotonic", "platt", "temperature", "beta", "histogram", "additive", "multiplicative")
SCORE_METHODS = (*CURVES, MATRIX)  # methods without features; curves may have groups
LORE = "lore"  # uses features or, with --by, the group of a row
CHUNKED_METHOD = "mcgrad"  # the method that supports --memory
MAX_SHOWN = 5
HELD_OUT_EXAMPLE = "held.parquet"
MIN_DISTINCT_SHARE = 0.9  # equal scores identify rows if at least this share of scores is distinct
MAX_KNOWN_SHARE = 0.5  # of validation rows with the score of a training row


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    _check_options(arguments)
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        progress.start("reading")
        if arguments.resume is not None and Path(arguments.resume).exists():
            progress.note(f"continuing from the finished rounds in {arguments.resume}")
        try:
            fit = _fit if arguments.memory is None else _fit_in_chunks
            calibrator, table = fit(arguments, progress)
        except KeyboardInterrupt:
            if arguments.resume is not None and Path(arguments.resume).exists():
                console.complain(f"finished rounds are saved in {arguments.resume}: the same command continues from there")
            raise
        progress.note(*fit_notes(calibrator.model_, calibrator))
        progress.start("writing")
        held_out_rows = None if arguments.held_out is None else _write_held_out(calibrator, table, arguments)
        save(calibrator, arguments.output, evidence=arguments.keep_evidence)
        model = load(arguments.output)
    if arguments.json is not None:
        data = {"file": arguments.output, **model_data(model)}
        for name in ("choice", "saturation"):
            if getattr(calibrator, f"{name}_", None) is not None:
                data[name] = getattr(calibrator, f"{name}_").to_dict()
        if held_out_rows is not None:
            data["held_out"] = {"file": arguments.held_out, "rows": held_out_rows}
        io.write_json(arguments.json, data)
    if arguments.json == io.STANDARD_OUTPUT:
        return 0
    if arguments.quiet:
        console.say(model.history.reason)
        return 0
    written = [f"wrote {arguments.output} ({model.info().map}; {io.file_size(arguments.output)})"]
    if held_out_rows is not None:
        written.append(f"wrote {arguments.held_out}: {format_rows(held_out_rows)} with held-out corrected scores")
    if arguments.json is not None:
        written.append(f"wrote {arguments.json}")
    show_page([*_page(model, table, calibrator), "", *written, *after_fit(arguments, model)])
    return 0


# Checks before the work


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise if options do not belong together or files cannot be written."""
    if arguments.memory is not None and arguments.method != CHUNKED_METHOD:
        raise ArgumentError(
            f"--memory is for the method {CHUNKED_METHOD}; {arguments.method} needs all rows in memory",
            hint="leave --memory out, or fit on a sample of the rows with --sql",
        )
    io.check_is_file(arguments.output, example="model.trueup")
    sources = io.source_files(arguments)
    if arguments.validation is not None:
        message = f"--validation is not for {arguments.method}, which does not use validation rows"
        check_supports(arguments.method, "stopping", message)
        training = io.local_files(arguments, arguments.files)
        for path in io.local_files(arguments, arguments.validation):
            if any(path.samefile(other) for other in training):
                raise ArgumentError(
                    f"--validation {path} is also a file to fit on",
                    hint="name other rows, or leave --validation out: rows are then held out",
                )
            sources.append(path)
    outputs = [(arguments.output, "model.trueup"), (arguments.json, "fit.json"), (arguments.resume, "fit.rounds")]
    if arguments.keep_evidence:
        _check_holds_out(arguments, "--keep-evidence")
    if arguments.held_out is not None:
        _check_held_out(arguments)
        outputs.append((arguments.held_out, HELD_OUT_EXAMPLE))
    io.check_outputs(outputs, sources)


def _check_holds_out(arguments: argparse.Namespace, option: str) -> io.InputRows:
    """Raise if the method holds no rows out, or the outcome is not binary; return the rows."""
    if arguments.method == PRIOR or (arguments.method in SCORE_METHODS and not arguments.cross_validate):
        curve = "add --cross-validate, which fits it by cross-validation, or use another --method"
        raise ArgumentError(
            f"{option}: {arguments.method} holds no rows out",
            hint="use another --method" if arguments.method == PRIOR else curve,
        )
    rows = io.InputRows(arguments)
    if len(rows.find_all(arguments.prediction, "prediction")) > 1 or arguments.task == "regression":
        raise ArgumentError(f"{option} needs one prediction column and a binary outcome", hint="leave it out")
    return rows


def _check_held_out(arguments: argparse.Namespace) -> None:
    rows = _check_holds_out(arguments, "--held-out")
    format_to_write(arguments.held_out)
    prediction = rows.find_all(arguments.prediction, "prediction")
    for name in (f"{score}_trueup{suffix}" for score in prediction for suffix in ("", HELD_OUT_SUFFIX)):
        if name.lower() in {known.lower() for known in rows.columns}:
            raise ColumnError(
                f"column {name!r} exists already, and --held-out writes one with this name",
                hint="use the rows from before they were scored, or omit that column with --sql",
            )


# The calibrator


def find_class(method: str) -> Any:
    """Return the calibrator class of a method; the import takes a second for some methods."""
    return getattr(importlib.import_module("trueup"), METHODS[method])


def check_supports(method: str, parameter: str, message: str) -> None:
    """Raise with ``message`` unless the calibrator of ``method`` has ``parameter``; the hint lists methods that have it."""
    if parameter not in _parameters(find_class(method)):
        methods = [name for name in METHODS if parameter in _parameters(find_class(name))]
        raise ArgumentError(message, hint=f"supported by {', '.join(methods)}")


def _parameters(calibrator: Any) -> Mapping[str, Any]:
    return inspect.signature(calibrator).parameters


def feature_lists(arguments: argparse.Namespace) -> list[str] | None:
    """Return --features or --by, the columns that the method reads besides the score; None: all columns without a role."""
    method, by, features = arguments.method, arguments.by, arguments.features
    if method not in (*CURVES, *([MATRIX, PRIOR] if by is None else [])) and (method != LORE or by is None):
        if by is not None:
            raise ArgumentError(
                f"--by is for the methods {', '.join((*CURVES, LORE))}; {method} "
                + ("corrects all rows alike" if method == MATRIX else "finds segments itself"),
                hint="leave --by out" if method == MATRIX else "name the columns with --features",
            )
        return None if features is None else list(features)
    if features is not None and method == LORE:
        raise ArgumentError(
            "--features and --by cannot be combined with lore",
            hint="--features define similarity; with --by, rows of the same group are similar",
        )
    if features is not None:
        raise ArgumentError(
            f"--features is not for {method}, which reads the prediction alone",
            hint="use --method mcgrad"
            if method in (MATRIX, PRIOR)
            else "fit one curve per group with --by, or use --method mcgrad",
        )
    return list(by or [])


def make_calibrator(arguments: argparse.Namespace, schema: Schema, validation: Any = None) -> Any:
    """Return the calibrator for a command, with the columns of ``schema``; ``validation`` may be its stopping rule."""
    method = arguments.method
    names = [feature.name for feature in schema.features]
    settings: dict[str, Any] = {
        "prediction": list(schema.prediction) if len(schema.prediction) > 1 else schema.prediction[0],
        "features": names,
        "by": names,
        "exclude": io.split_names(arguments.exclude or []),
        "task": arguments.task,
        "unlabelled": arguments.unlabelled,
        "categorical": [name for name in io.split_names(arguments.categorical or []) if name in names],
        "classes": list(schema.classes) or None,
        "random_state": arguments.seed,
        "threads": arguments.threads,
    }
    calibrator = find_class(method)
    if arguments.by is not None and method == LORE:
        settings["embedding"] = "groups"
    elif arguments.by is not None:
        from trueup.calibrators.curves.grouped import Grouped

        settings["calibrator"], calibrator = calibrator(), Grouped
    if validation is not None:
        settings["stopping"] = validation
    elif arguments.cross_validate:
        from trueup.calibrators.stopping import CrossValidation

        settings["stopping"] = CrossValidation()
    known = _parameters(calibrator)
    optional = {
        "depth": arguments.depth, "monotone": arguments.monotone or None, "resume": arguments.resume,
        "logits": arguments.logits or None,
        "sampling": io.parse_sampling(arguments.sampling) if method == PRIOR else None,
        "prevalence": _parse_prevalence(arguments.prevalence),
        "reference_prevalence": arguments.reference_prevalence,
        "labelled": None if arguments.labelled is None else _read_labelled,
    }  # fmt: skip
    for parameter, value in optional.items():
        if value is not None:
            if parameter not in known:
                check_supports(method, parameter, f"{option_name(parameter)} is not for {method}")
            value = _read_labelled(arguments, schema) if value is _read_labelled else value
            settings[parameter] = value
    if schema.classes and "classes" not in known:
        check_supports(method, "classes", f"{method} corrects one prediction column; got several classes")
    return calibrator(**{name: value for name, value in settings.items() if name in known})


def _parse_prevalence(text: str | None) -> float | str | None:
    try:
        return text if text in (None, "estimate") else float(text)
    except ValueError:
        raise ArgumentError(
            f'--prevalence must be a number or "estimate"; got {text!r}', "write --prevalence 0.03"
        ) from None


def _read_labelled(arguments: argparse.Namespace, schema: Schema) -> Any:
    """Return the model that --labelled names, or outcomes, scores and weights of its rows."""
    if is_model(arguments.labelled):
        return load(arguments.labelled[0])
    if arguments.outcome is None:
        raise ArgumentError("--labelled needs --outcome", hint="name the outcome column of the labelled rows")
    rows = io.InputRows(arguments, arguments.labelled)
    outcome, weight = rows.find(arguments.outcome, "outcome"), rows.find_optional(schema.weight, "weight")
    (prediction,) = (rows.find(name, "prediction") for name in schema.prediction)
    data = rows.read([outcome, prediction, weight], [], outcome)
    table = read(
        data, outcome=outcome, prediction=prediction, weight=weight, features=[], task="binary",
        unlabelled=arguments.unlabelled,
    )  # fmt: skip
    return (table.y, table.prediction) if table.weight is None else (table.y, table.prediction, table.weight)


# The fit


def _fit(arguments: argparse.Namespace, progress: console.ProgressDisplay) -> tuple[Any, Table]:
    rows = io.InputRows(arguments)
    prediction = rows.find_prediction()
    table = rows.load(prediction, feature_lists(arguments), "feature")(prediction)
    validation = _read_validation(arguments, table)
    progress.note(*table_notes(arguments, table))
    progress.start("fitting")
    calibrator = make_calibrator(arguments, table.schema, validation)
    # Only the choice among methods knows its number of steps in advance.
    calibrator.fit_table(table, progress.step if arguments.method == "auto" else progress.counter())
    return calibrator, table


def _fit_in_chunks(arguments: argparse.Namespace, progress: console.ProgressDisplay) -> tuple[Any, Table]:
    """Fit on files that need not fit in memory; return the calibrator and a sample of the rows."""
    from trueup.calibrators.mcgrad.partitioned import check_memory, fit_partitioned, summarise_partitions
    from trueup.cluster.files import open_scan_partitions

    rows = io.InputRows(arguments)
    prediction = rows.find_prediction()
    scan, roles = rows.scan(prediction, feature_lists(arguments), "feature")
    features = roles.pop("by")
    with open_scan_partitions(scan, prediction=prediction, features=features, **roles) as partitions:
        if arguments.validation is None:
            check_memory(partitions, make_calibrator(arguments, partitions.schema).stopping)
        summary = summarise_partitions(partitions, arguments.seed)
        table = summary.sample
        if arguments.positive is not None and summary.rows.highest == 0:
            raise io.no_positive_rows(arguments.positive, roles["outcome"])
        validation = _read_validation(arguments, table)
        progress.note(*table_notes(arguments, table, len(summary)))
        progress.start("fitting")
        calibrator = make_calibrator(arguments, table.schema, validation)
        fit_partitioned(calibrator, partitions, progress.counter(), summary)
    return calibrator, table


def _read_validation(arguments: argparse.Namespace, table: Table) -> Any:
    """Read the validation rows with the columns of the training rows ``table``; return None without --validation."""
    if arguments.validation is None:
        return None
    from trueup.calibrators.stopping import Validation

    schema = table.schema
    try:
        rows = io.InputRows(arguments, arguments.validation)
        names = [rows.find(name, "prediction") for name in schema.prediction]
        names += [rows.find(feature.name, "feature") for feature in schema.features]
        outcome = rows.find(str(schema.outcome), "outcome")
        weight = rows.find_optional(schema.weight, "weight")
        cluster = rows.find_optional(schema.cluster, "cluster")
        data = rows.read([*names, outcome, weight, cluster], text_columns(schema), outcome)
    except TrueupError as error:
        error.message = f"--validation: {error.message}"
        raise
    _check_differ(table, data[schema.prediction[0]])
    return Validation(data, outcome, weight, cluster=cluster)


def _check_differ(table: Table, scores: Any) -> None:
    """Raise if the ``scores`` of all validation rows occur in training rows, and warn if most of them do."""
    training = np.unique(table.prediction.reshape(len(table), -1)[:, 0])
    if len(training) < MIN_DISTINCT_SHARE * len(table) or np.ma.getdata(scores).dtype.kind not in "fiu":
        return
    known = np.isin(np.ma.getdata(scores).astype(np.float64), training)
    hint = "results on training rows are optimistic: name other rows"
    if known.all():
        raise DataError("--validation: every row has the score of a training row: they are the same rows", hint=hint)
    if known.mean() >= MAX_KNOWN_SHARE:
        warnings.warn(
            f"--validation: {int(known.sum()):,} of {len(known):,} rows have the score of a training row; {hint}",
            TrainingRowsWarning,
            stacklevel=2,
        )


# Output


def _write_held_out(calibrator: Any, table: Table, arguments: argparse.Namespace) -> int:
    """Read the rows again, write the held-out ones with their held-out corrected score, and return their number."""
    if calibrator.held_out_ is None or calibrator.held_out_rows_ is None or len(table.schema.prediction) > 1:
        raise DataError(
            f"--held-out: {type(calibrator).__name__} held no rows out", hint="use more rows, or leave --held-out out"
        )
    rows, before = calibrator.held_out_rows_, calibrator.held_out_before_
    (prediction,) = table.schema.prediction

    def make(columns: dict[str, Any]) -> dict[str, FloatArray]:
        scores = np.ma.getdata(columns[prediction]).astype(np.float64)
        if table.schema.logits:
            scores = to_probabilities(scores, table.schema.prediction, "binary", logits=True)
        if len(scores) <= rows.max() or not np.array_equal(scores[rows], before):
            raise DataError(
                "--held-out reads the rows again, and they differ from those of the fit",
                hint="give the rows of a query a fixed order with ORDER BY, and do not change files meanwhile",
            )
        corrected = np.full(len(scores), np.nan)
        corrected[rows] = calibrator.held_out_.p
        name = f"{prediction}_trueup"
        mark = {f"{name}{HELD_OUT_SUFFIX}": np.ones(len(scores))} if calibrator.history_.is_cross_fit else {}
        return {name: corrected, **mark}

    columns: dict[str, Any] = {"roles": model_columns(calibrator.model_), "text": text_columns(calibrator.model_.schema)}
    written = io.write_rows(arguments, arguments.held_out, make, example=HELD_OUT_EXAMPLE, some=rows, **columns)
    assert written is not None  # of a file
    return written


def _page(model: Model, table: Table, calibrator: Any) -> list[str | TextTable]:
    info, history, explanation = model.info(), model.history, model.explanation
    count = len(info.features)
    features = f"{count} feature{'' if count == 1 else 's'}" if count else "the score alone"
    parts: list[str | TextTable] = [
        history.reason,
        f"{info.method} on {format_rows(info.rows)} and {features}; {describe_evaluation(history)}",
    ]
    parts += [f"column {name} left out: {reason}" for name, reason in table.left_out.items()]
    if table.sampling is not None:
        parts.append(f"the rows are a sample, {table.sampling}: each is weighted by 1 / the share of its outcome")
    if table.unlabelled:
        were = "was" if table.unlabelled == 1 else "were"
        parts.append(f"{format_rows(table.unlabelled)} without an outcome {were} dropped")
    if explanation.corrections:
        shown = min(MAX_SHOWN, len(explanation.corrections))
        sample = "" if explanation.rows == info.rows else f" (on a random sample of {format_rows(explanation.rows)})"
        largest = "largest correction" if shown == 1 else f"{shown} largest corrections"
        parts += [f"{explanation.headline()}{sample}; the {largest}:", *corrections_tables(explanation, MAX_SHOWN)]
    if isinstance(model.map, PatchMap) and model.map.patches:
        parts += ["", "patches, in order:", patches_table(model.map.patch_list, MAX_SHOWN)]
    if getattr(calibrator, "choice_", None) is not None:
        choice = calibrator.choice_
        parts += ["", *choice.lines[1:], *choice.table_lines()]  # the first line is the reason, printed above
    return parts
