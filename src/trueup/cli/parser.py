"""The words of the command line. Imports nothing but the standard library, so that help comes at once."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from trueup.cli import console
from trueup.cli.helptexts import (
    ABOUT,
    AUDIT,
    AUDIT_EXAMPLES,
    DECIDE,
    DECIDE_EXAMPLES,
    DEMO,
    EXPLAIN,
    EXPLAIN_EXAMPLES,
    FIT,
    FIT_EXAMPLES,
    METHOD_HELP,
    PREDICT,
    PREDICT_EXAMPLES,
)
from trueup.cli.methods import METHODS
from trueup.cli.numbers import at_least, number, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import SupportsWrite

__all__ = ["build_parser"]


class Parser(argparse.ArgumentParser):
    """An argument parser that prints clean text, survives closed pipes and suggests the nearest option."""

    def __init__(self, **given: Any) -> None:
        given.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, add_help=False, **given)
        self._given: list[str] = []
        self.add_argument("-h", "--help", action="help", help="show this help and leave")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if message and file is sys.stdout:
            console.say(message.rstrip("\n"))
        elif message:
            console.complain(message.rstrip("\n"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and remember what was given to find a misspelt option among it."""
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; leave with 2."""
        console.complain(f"error: {message}")
        console.complain(f"hint: {self._nearest() or f'{self.prog} --help shows what it takes'}")
        self.exit(2)

    def _nearest(self) -> str:
        known = list(self._options())
        for word in (text.split("=")[0] for text in self._given if text.startswith("--") and text != "--"):
            near = [] if word in known else difflib.get_close_matches(word, known, n=1, cutoff=0.6)
            if near:
                return f"did you mean {near[0]}?"
        return ""

    def _options(self) -> Iterator[str]:
        """Name every option, of the verbs too: what they do not know is refused here."""
        for action in self._actions:
            yield from (word for word in action.option_strings if word.startswith("--"))
            for verb in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
                yield from verb._options()


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        import trueup

        console.say(f"trueup {trueup.__version__}")
        parser.exit(0)


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command."""
    parser = Parser(prog="trueup", description=ABOUT)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and leave")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    _add_audit(verbs)
    _add_fit(verbs)
    _add_predict(verbs)
    _add_explain(verbs)
    _add_decide(verbs)
    _add_demo(verbs)
    parser.epilog = "trueup VERB --help shows what a verb takes"
    return parser


def _add_audit(verbs: argparse._SubParsersAction[Any]) -> None:
    audit = verbs.add_parser(
        "audit", help="audit the scores in files or a query", description=AUDIT, epilog=AUDIT_EXAMPLES,
        usage="trueup audit FILE [FILE ...] --outcome Y --prediction P [--by A,B,C] [options]",
    )  # fmt: skip
    _add_rows(audit.add_argument_group("rows"))
    _add_columns(audit.add_argument_group("columns"))
    _add_segments(audit.add_argument_group("segments"))
    _add_test(audit.add_argument_group("test"))
    _add_output(audit.add_argument_group("output"))


def _add_fit(verbs: argparse._SubParsersAction[Any]) -> None:
    fit = verbs.add_parser(
        "fit", help="learn a correction of the scores, and save it", description=FIT, epilog=FIT_EXAMPLES,
        usage="trueup fit FILE [FILE ...] --outcome Y --prediction P [--features A,B,C] -o MODEL [options]",
    )  # fmt: skip
    _add_rows(fit.add_argument_group("rows"))
    columns = fit.add_argument_group("columns")
    _add_columns(columns)
    columns.add_argument(
        "--features", action="append", metavar="A,B,C", help="columns that form segments (default: all without a role)"
    )
    _add_categorical(columns)
    add = fit.add_argument_group("method").add_argument
    add("--method", default="mcgrad", choices=tuple(METHODS), metavar="NAME", help=METHOD_HELP)
    add(
        "--by", action="append", metavar="A,B",
        help="for a curve of the score (isotonic to histogram): one for each group, drawn to that of the whole; "
        "for lore: rows nearby are those of the same group",
    )  # fmt: skip
    add(
        "--judge", action="store_true",
        help="keep a curve of the score only where it lowers the loss of rows it has not seen (others always do)",
    )  # fmt: skip
    add("--depth", type=at_least(1), metavar="N", help="how many features a tree or patch combines (mcgrad: 2)")
    add("--monotone", action="store_true", help="never reverse two rows that have the same features (mcgrad)")
    add("--seed", type=at_least(0), default=0, metavar="N", help="fixes everything (default 0)")
    output = fit.add_argument_group("output")
    output.add_argument("-o", "--output", required=True, metavar="MODEL", help="where to save it, such as model.trueup")
    output.add_argument(
        "--held-out", metavar="FILE",
        help="write the rows that judged the fix, each with the score of a model that has not seen it: what "
        "trueup decide takes as --labelled",
    )  # fmt: skip
    _add_json(output)
    _add_common(output, "print one line, and no progress")


def _add_predict(verbs: argparse._SubParsersAction[Any]) -> None:
    predict = verbs.add_parser(
        "predict", help="correct the scores in files by a model", description=PREDICT, epilog=PREDICT_EXAMPLES,
        usage="trueup predict MODEL FILE [FILE ...] -o OUT [options]",
    )  # fmt: skip
    rows = predict.add_argument_group("rows")
    rows.add_argument("model", metavar="MODEL", help="what trueup fit has saved")
    _add_rows(rows)
    output = predict.add_argument_group("output")
    output.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT",
        help="by its ending Parquet, CSV or JSON: scored.parquet",
    )
    output.add_argument(
        "--as", dest="name", action="append", metavar="NAME",
        help="what to call the corrected score (default: its name and _trueup); for classes one name each",
    )  # fmt: skip
    output.add_argument("--only", action="store_true", help="write the corrected score, and no other column")
    _add_common(output, "print nothing, and no progress")


def _add_explain(verbs: argparse._SubParsersAction[Any]) -> None:
    explain = verbs.add_parser(
        "explain", help="say what a model corrects, or why it moves one score", description=EXPLAIN,
        epilog=EXPLAIN_EXAMPLES, usage="trueup explain MODEL [--row JSON] [options]",
    )  # fmt: skip
    add = explain.add_argument
    add("model", metavar="MODEL", help="what trueup fit has saved")
    add(
        "--row",
        metavar="JSON",
        help="""one row, as '{"p": 0.2, "country": "BR"}'; what is not there is missing""",
    )
    add("--top", type=at_least(0), default=20, metavar="N", help="how many corrections or parts to print (default 20)")
    _add_json(explain)
    _add_debug(explain)


def _add_decide(verbs: argparse._SubParsersAction[Any]) -> None:
    decide = verbs.add_parser(
        "decide", help="find the cheapest threshold, and say what it will cost", description=DECIDE,
        epilog=DECIDE_EXAMPLES,
        usage="trueup decide FILE [FILE ...] --prediction P --cost-fn X --cost-fp Y [options]",
    )  # fmt: skip
    rows = decide.add_argument_group("rows")
    _add_rows(rows)
    rows.add_argument(
        "--prediction", required=True, action="append", metavar="P", help="the score: a probability of the outcome 1"
    )
    rows.add_argument("--weight", metavar="W", help="importance weights, of labelled rows too")
    _add_costs(decide.add_argument_group("costs").add_argument)
    labelled = decide.add_argument_group("labelled rows")
    labelled.add_argument(
        "--labelled", action="append", metavar="FILE",
        help="rows with outcomes that taught neither the model nor a fix (what fit --held-out writes is right); they "
        "correct the cost and bound its error",
    )  # fmt: skip
    labelled.add_argument("--outcome", metavar="Y", help="what happened in them: 0/1, or a probability")
    _add_unlabelled(labelled)
    segments = decide.add_argument_group("segments")
    segments.add_argument("--by", action="append", metavar="A,B,C", help="columns that form segments: tell what each costs")
    segments.add_argument(
        "--depth", type=at_least(1), metavar="N", help="how many columns a segment combines: 1 (default), 2 or 3"
    )
    _add_bins(segments)
    _add_categorical(segments)
    output = decide.add_argument_group("output")
    _add_interval(output.add_argument)
    output.add_argument(
        "--top", type=at_least(0), default=20, metavar="N", help="how many segments of a table to print (default 20)"
    )
    output.add_argument(
        "-o", "--output", action="append", metavar="OUT",
        help="by its ending: Parquet, CSV or JSON, the rows and what to do with each; .svg, .png or .pdf, a picture of "
        "what each threshold costs (needs the extra plots); may be repeated",
    )  # fmt: skip
    output.add_argument("--as", dest="name", metavar="NAME", help="what to call the column that says it (default action)")
    _add_json(output)
    _add_common(output, "print one line, and no progress")


def _add_costs(add: Callable[..., Any]) -> None:
    finite = within(-math.inf, math.inf, ends=True)
    add("--cost-fn", type=finite, metavar="X", help="of a positive row that is passed over")
    add("--cost-fp", type=finite, metavar="X", help="of a negative row that is acted on")
    add("--cost-tp", type=finite, metavar="X", help="of a positive row that is acted on (default 0; below 0 a gain)")
    add("--cost-tn", type=finite, metavar="X", help="of a negative row that is passed over (default 0)")
    add(
        "--action", action="append", metavar="NAME:X,Y",
        help="something to do, in place of these: its cost on a positive and on a negative row; at least two",
    )  # fmt: skip
    add("--threshold", type=number, metavar="T", help="judge this rule: act where the score is T or more")
    add("--capacity", action="append", metavar="N", help="act on no more rows than N; for an --action NAME=N")
    add("--fixed-cost", action="append", metavar="X", help="of acting at all, once; for an --action NAME=X")


def _add_interval(add: Callable[..., Any]) -> None:
    add(
        "--level", type=within(0, 1, ends=False), default=0.9, metavar="A",
        help="how often an interval is to hold (default 0.9)",
    )  # fmt: skip
    add(
        "--target", default="rows", choices=("rows", "population"), metavar="OF",
        help="rows (default): the total that these rows will cost; population: the cost a row of rows to come",
    )  # fmt: skip


def _add_rows(group: argparse._ArgumentGroup) -> None:
    group.add_argument("files", nargs="*", metavar="FILE", help="Parquet, CSV or JSON; a pattern such as 'day-*.csv'")
    group.add_argument("--sql", metavar="QUERY", help="a query in DuckDB's SQL; it sees FILEs as the table data")


def _add_json(group: Any) -> None:
    group.add_argument(
        "--json", metavar="FILE", help="write everything as JSON; - is standard output, and then nothing else goes there"
    )


def _add_common(group: argparse._ArgumentGroup, quiet: str) -> None:
    group.add_argument("--threads", type=at_least(1), metavar="N", help="default: all cores")
    group.add_argument("--quiet", action="store_true", help=quiet)
    _add_debug(group)


def _add_categorical(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--categorical",
        action="append",
        metavar="A,B",
        help="numbers that are names, such as zip: not cut, and read as text",
    )


def _add_columns(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--outcome", required=True, metavar="Y", help="what happened: 0/1, a probability, a number, or a class")
    add(
        "--prediction", required=True, action="append", metavar="P", help="the score; for classes one column each: p0,p1,p2"
    )
    add("--classes", action="append", metavar="A,B", help="the outcome that each of several prediction columns stands for")
    add("--weight", metavar="W", help="importance weights")
    add(
        "--task", default="auto", choices=("auto", "binary", "regression"), metavar="TASK",
        help="auto (default), binary, or regression for outcomes that are amounts",
    )  # fmt: skip
    _add_unlabelled(group)


def _add_unlabelled(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--unlabelled", default="error", choices=("error", "drop"), metavar="HOW",
        help="rows without an outcome: error (default) refuses them, drop sets them aside",
    )  # fmt: skip


def _add_bins(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--bins", action="append", metavar="SPEC",
        help="how numbers and dates are cut: 10 (default) for all; age=5 or age=18:30:50 for one column "
        "(age=18: is one edge); opened=month, or year, quarter (default), week, day",
    )  # fmt: skip


def _add_segments(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--by", action="append", metavar="A,B,C", help="columns that form segments (default: all without a role)")
    add(
        "--depth",
        type=at_least(1),
        default=2,
        metavar="N",
        help="how many columns a segment combines: 1, 2 (default) or 3",
    )
    _add_bins(group)
    _add_categorical(group)
    add("--min-rows", type=at_least(1), default=50, metavar="N", help="smaller segments are not tested (default 50)")
    add(
        "--max-cells",
        type=at_least(1),
        metavar="N",
        help="budget of segments; the deepest are dropped first (default 2000000)",
    )


def _add_test(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--alpha", type=number, default=0.05, metavar="A", help="level of the whole family of tests (default 0.05)")
    add(
        "--adjust", default="holm", choices=("holm", "max", "bh", "by"), metavar="HOW",
        help="holm (default) and max bound the chance of any false alarm, bh and by the share of them",
    )  # fmt: skip
    add("--draws", type=at_least(1), default=199, metavar="N", help="draws of --adjust max (default 199)")
    add("--seed", type=at_least(0), default=0, metavar="N", help="seed of those draws (default 0)")


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--top", type=at_least(0), default=20, metavar="N", help="how many segments to print (default 20)")
    _add_json(group)
    add("--report", metavar="FILE", help="write a page, one HTML file that needs nothing else")
    add("--fail-if", choices=("miscalibrated",), metavar="STATE", help="leave with exit code 1 if miscalibrated")
    _add_common(group, "print the verdict only, and no progress")


def _add_debug(group: Any) -> None:
    group.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")


def _add_demo(verbs: argparse._SubParsersAction[Any]) -> None:
    demo = verbs.add_parser("demo", help="see it at work on simulated loans", description=DEMO)
    add = demo.add_argument
    add("--output", default="trueup-demo.html", metavar="FILE", help="where to write the page (default trueup-demo.html)")
    add("--rows", type=at_least(1000), default=40_000, metavar="N", help="how many loans (default 40000, at least 1000)")
    add("--seed", type=at_least(0), default=0, metavar="N", help="what fixes the loans (default 0)")
    _add_debug(demo)
