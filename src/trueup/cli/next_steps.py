"""Suggested next commands: the only place that writes command lines for users to copy."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trueup.audits.result import Audit
    from trueup.calibrators.model import Model
    from trueup.cli.audit import Export, ScoreAudits
    from trueup.decisions.evaluate import RuleEvaluation
    from trueup.monitoring.monitor import Monitor
    from trueup.monitoring.result import MonitorReport

OPTION_NAMES = {"random_state": "seed", "name": "as"}  # parameters whose option has another name
COMMA_LISTS = {"against", "by", "categorical", "classes", "exclude", "features", "prediction"}
DEFAULTS = (("task", "auto"), ("unlabelled", "error"), ("level", 0.9), ("target", "rows"))
ROLES = ("outcome", "positive", "prediction", "classes", "weight", "sampling", "cluster", "task", "unlabelled")
DECISION_SETTINGS = (
    "cost_fn", "cost_fp", "cost_tp", "cost_tn", "action", "capacity", "fixed_cost", "weight", "by", "depth", "bins",
    "categorical", "level", "target", "cluster",
)  # fmt: skip
PICTURES = (".svg", ".png", ".pdf")


def option_name(parameter: str) -> str:
    """Return the command-line option of a Python parameter, such as --min-rows of min_rows."""
    return f"--{OPTION_NAMES.get(parameter, parameter).replace('_', '-')}"


def option_words(parameter: str, value: Any, defaults: Sequence[tuple[str, Any]] = DEFAULTS) -> list[str]:
    """Return a parameter and its value as words of a command line; no words if it is None or the default."""
    if value is None or (parameter, value) in defaults:
        return []
    if value is True:
        return [option_name(parameter)]
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    texts = [repr(float(item)).removesuffix(".0") if isinstance(item, float) else str(item) for item in values]
    if parameter in COMMA_LISTS and texts and not any("," in text for text in texts):
        texts = [",".join(texts)]
    option = option_name(parameter)
    return [word for text in texts for word in ([f"{option}={text}"] if text.startswith("-") else [option, text])]


def command_words(verb: str, *paths: str, output: str | None = None, **settings: Any) -> list[str]:
    """Return the words of a command after `trueup`; a path that starts with a hyphen is written as ./-path."""
    words = [verb, *(f"./{path}" if path.startswith("-") else path for path in paths)]
    words += [word for parameter, value in settings.items() for word in option_words(parameter, value)]
    return [*words, "-o", output] if output is not None else words


def command(verb: str, *paths: str, output: str | None = None, **settings: Any) -> str:
    """Return a command line to copy: a verb with paths, settings by parameter and the file to write."""
    return shlex.join(["trueup", *command_words(verb, *paths, output=output, **settings)])


def _as_given(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(arguments, name, None) for name in names}


# After an audit


def after_audit(audits: ScoreAudits, arguments: argparse.Namespace, exports: Sequence[Export]) -> list[str]:
    """State the next step as the page does, with the commands that write a page and that fit a correction."""
    from trueup.audits.materiality import NOT_DETECTED  # other commands need no audits
    from trueup.audits.settings import Source
    from trueup.audits.text import has_large_untested, unclustered_column

    if unclustered_column(audits.audit) is not None:  # other steps would follow from p-values that do not hold
        return _with_clusters(audits.audit, arguments)
    lines = []
    if not any(export.kind == "page" for export in exports):
        # The same command with a page: other settings would give another verdict.
        lines.append(f"  {shlex.join(['trueup', *_repeated_words(arguments, '-o', 'report.html')])}")
    if audits.other is not None:
        return _after_comparison(audits, arguments, lines)
    if audits.audit.state == NOT_DETECTED and not has_large_untested(audits.audit):
        return ["next:", *lines] if lines else []
    from trueup.reports.summary import next_step

    source = Source((), arguments.verb, fit="trueup fit")  # steps name options rather than parameters
    step = next_step(replace(audits.audit, source=source))
    fit = [f"  {shlex.join(['trueup', *fit_words(arguments, arguments.files)])}"] if step.code else []
    return [_next_sentence(step.steps), *lines, *fit]


def _repeated_words(arguments: argparse.Namespace, *more: str) -> list[str]:
    """Return the words of a command as typed, with ``more`` options."""
    end = arguments.words.index("--") if "--" in arguments.words else len(arguments.words)
    again = [word for word in arguments.words[:end] if word not in ("--verbose", "--debug")]
    return [*again, *more, *arguments.words[end:]]


def cluster_words(audit: Audit, arguments: argparse.Namespace) -> list[str]:
    """Return the words that repeat an audit of rows that are not independent with their clusters; none if not needed.

    None either if the column of the clusters was named to form segments: it cannot do both.
    """
    from trueup.audits.text import unclustered_column

    column = unclustered_column(audit)
    if column is None or (arguments.by is not None and any(one.name == column for one in audit.schema.features)):
        return []
    independent = ["--adjust", "holm"] if audit.settings.adjust == "max" else []  # max draws independent rows
    return _repeated_words(arguments, *option_words("cluster", column), *independent)


def _with_clusters(audit: Audit, arguments: argparse.Namespace) -> list[str]:
    from trueup.audits.settings import Source
    from trueup.reports.summary import next_step

    words = cluster_words(audit, arguments)
    steps = next_step(replace(audit, source=Source((), arguments.verb))).steps  # names options rather than parameters
    return [_next_sentence(steps), *([f"  {shlex.join(['trueup', *words])}"] if words else [])]


def _next_sentence(steps: Sequence[str]) -> str:
    return f"next: {steps[0][0].lower()}{' '.join(steps)[1:]}"


def fit_words(arguments: argparse.Namespace, files: Sequence[str]) -> list[str]:
    """Return the words of a command that fits a correction with the roles and columns of an audit.

    By default the features are all other columns: that of the exposures, which was no segment of the audit, is excluded.
    """
    settings = _as_given(arguments, ("sql", *ROLES)) | {"features": arguments.by}
    settings["exclude"] = arguments.exposure if arguments.by is None else None
    more = _as_given(arguments, ("categorical", "memory", "spill"))
    return command_words("fit", *files, **settings, **more, output="model.trueup")


def _after_comparison(audits: ScoreAudits, arguments: argparse.Namespace, page: list[str]) -> list[str]:
    """Suggest what to do after comparing two scores of the same rows; ``page`` has lines that suggest a page."""
    from trueup.reports.compare import compared_step

    assert audits.other is not None
    if audits.on_training_rows:
        return ["next, on rows that the model was not fitted on:", f"  {predict_command(arguments.fix, 'other.parquet')}"]
    step = compared_step({audits.other_name: audits.other, audits.name: audits.audit})
    lines = [f"  {shlex.join(['trueup', *fit_words(arguments, arguments.files)])}"] if step.code else []
    if audits.fix is not None and audits.audit.miscalibrated:
        settings = _as_given(arguments, ROLES) | {"prediction": audits.other.schema.prediction, "features": arguments.by}
        again = command("fit", "more.parquet", **settings, categorical=arguments.categorical, output="again.trueup")
        lines.append(f"  {again}")
    elif audits.fix is not None and audits.other.miscalibrated and audits.audit.tested:
        lines.append(f"  {predict_command(arguments.fix)}")
    return [_next_sentence(step.steps), *lines, *page]


# After a fit and a prediction


def predict_command(model: str, rows: str = "new.parquet") -> str:
    """Return the command that corrects the scores in the file ``rows`` by the model file ``model``."""
    return command("predict", model, rows, output="scored.parquet")


def after_fit(arguments: argparse.Namespace, model: Model) -> list[str]:
    """Suggest to correct new rows, to decide with held-out rows as evidence, and to explain the model."""
    lines = ["next:", f"  {predict_command(arguments.output)}"]
    if arguments.held_out is not None or arguments.keep_evidence:
        roles = {"labelled": arguments.output}  # a model has the weights and clusters of its evidence
        if arguments.held_out is not None:
            roles = {"labelled": arguments.held_out, **_as_given(arguments, ("outcome", "positive", "weight", "cluster"))}
        score = f"{model.schema.prediction[0]}_trueup"
        decide = command("decide", "scored.parquet", prediction=score, cost_fn="X", cost_fp="Y", **roles)
        lines.append(f"  {decide}")
    return [*lines, f"  {command('explain', arguments.output)}"]


def after_predict(arguments: argparse.Namespace, model: Model, names: list[str]) -> list[str]:
    """Suggest to compare the corrected scores ``names`` with the original ones once outcomes are known."""
    schema = model.schema
    if arguments.only or not schema.prediction or not schema.outcome:
        return []
    audit = command(
        "audit", arguments.output, outcome=schema.outcome, prediction=names,
        against=None if schema.logits else schema.prediction, fix=None if schema.logits else arguments.model,
        weight=schema.weight, task="regression" if schema.task == "regression" else None,
        classes=schema.classes, by=[feature.name for feature in schema.features],
    )  # fmt: skip
    return ["next, once outcomes are known:", f"  {audit}"]


# After a decision


def after_decide(evaluation: RuleEvaluation, arguments: argparse.Namespace) -> list[str]:
    """Suggest to correct miscalibrated scores and decide again, or to audit the scores once outcomes are known."""
    if evaluation.miscalibrated and not evaluation.reversed_scores and arguments.outcome is not None:
        score, corrected = evaluation.prediction, f"{evaluation.prediction}_trueup"
        columns = _as_given(arguments, ("positive", "weight", "cluster", "categorical", "unlabelled"))
        features = [feature.name for feature in evaluation.table.schema.features]
        fit = command(
            "fit", *arguments.labelled, outcome=arguments.outcome, prediction=score, features=features or None, **columns,
            held_out="held.parquet", output="model.trueup",
        )  # fmt: skip
        decide = command(
            "decide", "scored.parquet", prediction=corrected, **_as_given(arguments, DECISION_SETTINGS),
            labelled="held.parquet", outcome=arguments.outcome, positive=arguments.positive,
        )  # fmt: skip
        predict = command("predict", "model.trueup", *(arguments.files or ["FILE"]), output="scored.parquet")
        lines = ["", f"the scores are miscalibrated; correct them, then decide with {corrected}:"]
        return [*lines, f"  {fit}", f"  {predict}", f"  {decide}"]
    rows = [path for path in arguments.output or () if not path.lower().endswith(PICTURES)][:1]
    audit = command(
        "audit", *(rows or arguments.files or ["FILE"]), outcome=arguments.outcome or "Y",
        prediction=evaluation.prediction, by=[feature.name for feature in evaluation.table.schema.features] or None,
        **_as_given(arguments, ("positive", "weight", "categorical")),
    )  # fmt: skip
    return ["", "next, once outcomes are known:", f"  {audit}"]


# After a monitor


EARLIER_FILES = "FILES-SINCE-THEN"  # where the last update had not all rows since the onset


def after_watch(report: MonitorReport, monitor: Monitor, arguments: argparse.Namespace) -> list[str]:
    """Return the words of a command that fits a correction on the mature rows since the onset of the first alarm."""
    from trueup.data.bins import format_date
    from trueup.monitoring.periods import period_start
    from trueup.monitoring.result import CERTAIN, OFFSET
    from trueup.monitoring.rows import as_day

    if report.advice in (None, CERTAIN) or monitor.time is None:
        return []
    time, alarm = str(monitor.time), report.distinct[0]
    quoted = time if time.isidentifier() else '"' + time.replace('"', '""') + '"'
    inner = "data" if arguments.sql is None else f"({arguments.sql.rstrip().rstrip(';')})"
    until = format_date(as_day(report.until) - monitor.maturity)
    sql = f"SELECT * FROM {inner} WHERE {quoted} >= '{alarm.since}' AND {quoted} < '{until}'"  # noqa: S608
    one_factor = report.advice == OFFSET
    first, rows = as_day(alarm.since) + monitor.maturity, report.rows
    since = sum(count for number, count in monitor.state.ledger.given.items()
                if period_start(number + 1, monitor.period) > first)  # fmt: skip
    files = (arguments.files or ()) if rows.added + rows.repeated + rows.closed >= since else [EARLIER_FILES]
    features = None if one_factor else [one.name for one in monitor.state.schema.features]
    return command_words(
        "fit", *files, sql=sql, outcome=monitor.outcome, positive=arguments.positive,
        prediction=monitor.prediction, cluster=monitor.cluster, features=features or None,
        method="multiplicative" if one_factor else None, output="model.trueup",
    )  # fmt: skip
