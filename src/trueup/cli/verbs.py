"""What each verb takes. Imports nothing but the standard library, so that help comes at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trueup.cli import helptexts as say
from trueup.cli.methods import METHODS
from trueup.cli.numbers import at_least, number, within
from trueup.cli.options import add, add_all, add_every

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Verbs = argparse._SubParsersAction[Any]

SHELLS = ("bash", "zsh", "fish")
PROFILE_NAMES = ("general", "credit", "ads", "health")  # those that come with trueup; a file makes another
OUTCOME = "0/1, a probability, a number, or a class"
CLASSES = "for classes one column each: p0,p1,p2"


def add_verbs(verbs: Verbs) -> None:
    """Add every verb, in the order in which they are used."""
    _add_demo(verbs)
    _add_audit(verbs)
    _add_fit(verbs)
    _add_predict(verbs)
    _add_explain(verbs)
    _add_decide(verbs)
    _add_completion(verbs)


def _add_rows(group: argparse._ArgumentGroup) -> None:
    group.add_argument("files", nargs="*", metavar="FILE", help="Parquet, CSV or JSON; a pattern such as 'day-*.csv'")
    add(group, "--sql")


def _add_columns(group: argparse._ArgumentGroup) -> None:
    add(group, "--outcome", OUTCOME, required=True)
    add(group, "--prediction", CLASSES, required=True)
    add_all(group, "--positive", "--classes", "--weight", "--task", "--unlabelled")


def _add_audit(verbs: Verbs) -> None:
    audit = verbs.add_parser(
        "audit", help="audit the scores in files or a query", description=say.AUDIT, epilog=say.AUDIT_EXAMPLES,
        usage="trueup audit FILE [FILE ...] --outcome Y --prediction P [--by A,B,C] [-o report.html] [options]",
    )  # fmt: skip
    rows = audit.add_argument_group("rows")
    _add_rows(rows)
    add_all(rows, "--memory", "--spill")
    columns = audit.add_argument_group("columns")
    _add_columns(columns)
    columns.add_argument(
        "--against", action="append", metavar="P",
        help="another score of the same rows, to compare with, such as the one before a fix",
    )  # fmt: skip
    columns.add_argument("--fix", metavar="MODEL", help="what was fitted between the two; the page says what it corrects")
    segments = audit.add_argument_group("segments")
    add(segments, "--by", "all columns without a role by default")
    add(segments, "--depth", "1, 2 (default) or 3")
    add_all(segments, "--bins", "--categorical")
    segments.add_argument("--min-rows", type=at_least(1), metavar="N", help="smaller segments are not tested (default 50)")
    segments.add_argument(
        "--max-cells", type=at_least(1), metavar="N",
        help="budget of segments; the deepest are dropped first (default 2000000)",
    )  # fmt: skip
    _add_test(audit.add_argument_group("test"))
    _add_audit_output(audit.add_argument_group("output"))


def _add_test(group: argparse._ArgumentGroup) -> None:
    add(group, "--alpha", "0.05 by default")
    group.add_argument(
        "--adjust", choices=("holm", "max", "bh", "by"), metavar="HOW",
        help="holm (default) and max bound the chance of any false alarm, bh and by the share of them",
    )  # fmt: skip
    group.add_argument("--draws", type=at_least(1), default=199, metavar="N", help="draws of --adjust max (default 199)")
    add(group, "--seed")
    group.add_argument(
        "--fail-if", choices=("miscalibrated",), metavar="STATE",
        help="leave with exit code 1 if miscalibrated: if some segment is off beyond chance",
    )  # fmt: skip
    group.add_argument(
        "--tolerance", type=within(0, math.inf, ends=True), metavar="E",
        help="--fail-if passes over segments that are off by no more than this; the error is ecce, in the units of the "
        "score, which counts errors that cancel on average, too",
    )  # fmt: skip


def _add_audit_output(group: argparse._ArgumentGroup) -> None:
    add(
        group, "--output",
        "by its ending: .html a page that needs nothing else, .md a summary, .csv every segment, .json everything; "
        "may be repeated", action="append",
    )  # fmt: skip
    group.add_argument("--report", metavar="FILE", help="write the page, whatever the ending of its name")
    group.add_argument("--markdown", metavar="FILE", help="write a summary in Markdown; - is standard output")
    group.add_argument("--csv", metavar="FILE", help="write every segment as CSV; - is standard output")
    add(group, "--json")
    group.add_argument(
        "--profile", default="general", metavar="NAME",
        help=f"the words, tables and defaults of a trade: {', '.join(PROFILE_NAMES[:-1])} or {PROFILE_NAMES[-1]} (default "
        "general), or a file such as mine.toml",
    )  # fmt: skip
    group.add_argument("--title", metavar="TEXT", help="what stands above the verdict on the page")
    add(group, "--top", default=None)
    add_every(group)


def _add_fit(verbs: Verbs) -> None:
    fit = verbs.add_parser(
        "fit", help="learn a correction of the scores, and save it", description=say.FIT, epilog=say.FIT_EXAMPLES,
        usage="trueup fit FILE [FILE ...] --outcome Y --prediction P [--features A,B,C] -o MODEL [options]",
    )  # fmt: skip
    rows = fit.add_argument_group("rows")
    _add_rows(rows)
    rows.add_argument(
        "--validation", action="append", metavar="FILE",
        help="rows that judge the fix, in place of some of those it is fitted on: later ones, say",
    )  # fmt: skip
    add(rows, "--memory", "mcgrad only; the model is the same, but for which rows judge it")
    add_all(rows, "--spill", "--resume")
    columns = fit.add_argument_group("columns")
    _add_columns(columns)
    columns.add_argument(
        "--features", action="append", metavar="A,B,C", help="columns that form segments (default: all without a role)"
    )
    add(columns, "--categorical")
    _add_method(fit.add_argument_group("method"))
    output = fit.add_argument_group("output")
    add(output, "--output", "the model, such as model.trueup", required=True)
    output.add_argument(
        "--held-out", metavar="FILE",
        help="write the rows that judged the fix, each with the score of a model that has not seen it: what "
        "trueup decide takes as --labelled",
    )  # fmt: skip
    add(output, "--json")
    add_every(output)


def _add_method(method: argparse._ArgumentGroup) -> None:
    method.add_argument("--method", default="mcgrad", choices=tuple(METHODS), metavar="NAME", help=say.METHOD_HELP)
    add(
        method, "--by",
        "for a curve of the score (isotonic to histogram): one curve for each, drawn to that of the whole; for lore: "
        "rows nearby are those of the same segment",
    )  # fmt: skip
    method.add_argument(
        "--judge", action="store_true",
        help="keep a curve of the score only where it lowers the loss of rows it has not seen (others always do)",
    )  # fmt: skip
    add(method, "--depth", "here a tree or a patch (mcgrad: 2)")
    method.add_argument(
        "--monotone", action="store_true", help="never reverse two rows that have the same features (mcgrad)"
    )
    add(method, "--seed")


def _add_predict(verbs: Verbs) -> None:
    predict = verbs.add_parser(
        "predict", help="correct the scores in files by a model", description=say.PREDICT, epilog=say.PREDICT_EXAMPLES,
        usage="trueup predict MODEL FILE [FILE ...] -o OUT [options]",
    )  # fmt: skip
    rows = predict.add_argument_group("rows")
    rows.add_argument("model", metavar="MODEL", help="what trueup fit has saved")
    _add_rows(rows)
    add_all(rows, "--memory", "--spill")
    output = predict.add_argument_group("output")
    add(output, "--output", "by its ending Parquet, CSV or JSON: scored.parquet", required=True)
    add(output, "--as", "the corrected score (default: its name and _trueup); for classes one name each")
    output.add_argument("--only", action="store_true", help="write the corrected score, and no other column")
    add_every(output)


def _add_explain(verbs: Verbs) -> None:
    explain = verbs.add_parser(
        "explain", help="say what a model corrects, or why it moves one score", description=say.EXPLAIN,
        epilog=say.EXPLAIN_EXAMPLES, usage="trueup explain MODEL [--row JSON] [options]",
    )  # fmt: skip
    explain.add_argument("model", metavar="MODEL", help="what trueup fit has saved")
    explain.add_argument(
        "--row", metavar="JSON", help="""one row, as '{"p": 0.2, "country": "BR"}'; what is not there is missing"""
    )
    add_all(explain, "--top", "--json")
    add_every(explain, threads=False)


def _add_decide(verbs: Verbs) -> None:
    decide = verbs.add_parser(
        "decide", help="find the cheapest threshold, and say what it will cost", description=say.DECIDE,
        epilog=say.DECIDE_EXAMPLES,
        usage="trueup decide FILE [FILE ...] --prediction P --cost-fn X --cost-fp Y [options]",
    )  # fmt: skip
    rows = decide.add_argument_group("rows")
    _add_rows(rows)
    add(rows, "--prediction", "a probability of the outcome 1", required=True)
    add(rows, "--weight", "of labelled rows too")
    _add_costs(decide.add_argument_group("costs").add_argument)
    labelled = decide.add_argument_group("labelled rows")
    labelled.add_argument(
        "--labelled", action="append", metavar="FILE",
        help="rows with outcomes that taught neither the model nor a fix (what fit --held-out writes is right); they "
        "correct the cost and bound its error",
    )  # fmt: skip
    add(labelled, "--outcome", "0/1, or a probability: a column of the labelled rows")
    add_all(labelled, "--positive", "--unlabelled")
    segments = decide.add_argument_group("segments")
    add(segments, "--by", "tell what each costs")
    add(segments, "--depth", "1 (default), 2 or 3")
    add_all(segments, "--bins", "--categorical")
    output = decide.add_argument_group("output")
    add(output, "--level", "0.9 by default", default=0.9)
    output.add_argument(
        "--target", default="rows", choices=("rows", "population"), metavar="OF",
        help="rows (default): the total that these rows will cost; population: the cost a row of rows to come",
    )  # fmt: skip
    add(output, "--top")
    add(
        output, "--output",
        "by its ending: Parquet, CSV or JSON, the rows and what to do with each; .svg, .png or .pdf, a picture of what "
        "each threshold costs (needs the extra plots); may be repeated", action="append",
    )  # fmt: skip
    add(output, "--as", "what to do with a row (default: action)")
    add(output, "--json")
    add_every(output)


def _add_costs(add_one: Callable[..., Any]) -> None:
    finite = within(-math.inf, math.inf, ends=True)
    add_one("--cost-fn", type=finite, metavar="X", help="of a positive row that is passed over")
    add_one("--cost-fp", type=finite, metavar="X", help="of a negative row that is acted on")
    add_one("--cost-tp", type=finite, metavar="X", help="of a positive row that is acted on (default 0; below 0 a gain)")
    add_one("--cost-tn", type=finite, metavar="X", help="of a negative row that is passed over (default 0)")
    add_one(
        "--action", action="append", metavar="NAME:X,Y",
        help="something to do, in place of these: its cost on a positive and on a negative row; at least two",
    )  # fmt: skip
    add_one("--threshold", type=number, metavar="T", help="judge this rule: act where the score is T or more")
    add_one("--capacity", action="append", metavar="N", help="act on no more rows than N; for an --action NAME=N")
    add_one("--fixed-cost", action="append", metavar="X", help="of acting at all, once; for an --action NAME=X")


def _add_demo(verbs: Verbs) -> None:
    demo = verbs.add_parser(
        "demo", help="see it at work on simulated loans", description=say.DEMO, epilog=say.DEMO_EXAMPLES,
        usage="trueup demo [options]",
    )  # fmt: skip
    add(demo, "--output", "the page (default trueup-demo.html); the model goes beside it", default="trueup-demo.html")
    demo.add_argument(
        "--rows", type=at_least(1000), default=40_000, metavar="N", help="how many loans (default 40000, at least 1000)"
    )
    add(demo, "--seed")
    add_every(demo, threads=False)


def _add_completion(verbs: Verbs) -> None:
    completion = verbs.add_parser(
        "completion", help="print a script that completes trueup's words in a shell", description=say.COMPLETION,
        epilog=say.COMPLETION_EXAMPLES, usage="trueup completion bash|zsh|fish",
    )  # fmt: skip
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS[:-1]) + f" or {SHELLS[-1]}")
    add_every(completion, threads=False)
