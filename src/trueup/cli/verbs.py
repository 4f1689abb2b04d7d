"""Arguments and help texts of the verbs. Imports nothing but the standard library, so that `trueup --help` is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.cli.methods import METHODS
from trueup.cli.parser import add, add_all, add_common, at_least_zero, finite, integer, number

if TYPE_CHECKING:
    import argparse

    Verbs = argparse._SubParsersAction[Any]

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
PROFILE_NAMES = ("general", "credit", "ads", "health")  # built in; a file defines another

DESCRIPTION = """\
Audit the calibration of any model's scores on every segment, and correct them.

  trueup demo
  trueup audit scores.parquet --outcome y --prediction p --by country,device
  trueup fit scores.parquet --outcome y --prediction p --features country,device -o model.trueup
  trueup predict model.trueup new.parquet -o scored.parquet
  trueup explain model.trueup
  trueup decide new.parquet --prediction p --cost-fn 500 --cost-fp 20
"""


def add_verbs(verbs: Verbs) -> None:
    """Add all verbs, in the order of their use."""
    for add_verb in (_add_demo, _add_audit, _add_fit, _add_predict, _add_explain, _add_decide, _add_completion):
        add_verb(verbs)


def _add_rows(group: argparse._ArgumentGroup) -> None:
    files = group.add_argument("files", nargs="*", metavar="FILE", help="Parquet, CSV or JSON; a pattern like 'day-*.csv'")
    files.needed = True  # type: ignore[attr-defined]
    add(group, "--sql")


def _add_model(group: Any) -> None:
    group.add_argument("model", nargs="?", metavar="MODEL", help="a model saved by trueup fit").needed = True


def _add_columns(group: argparse._ArgumentGroup) -> None:
    add(group, "--outcome", "0/1, a probability, a number, or a class", needed=True)
    add(group, "--prediction", "for classes one column each: p0,p1,p2", needed=True)
    add_all(group, "--positive", "--classes", "--weight", "--task", "--unlabelled")


# trueup demo


def _add_demo(verbs: Verbs) -> None:
    demo = verbs.add_parser(
        "demo",
        help="run an audit and a correction on simulated loans",
        usage="trueup demo [options]",
        description="""\
Audit simulated loan scores with planted errors, fit a correction on half of the loans, audit the
other half again, and write both audits to one page and the model next to it.
""",
        epilog="""\
examples:
  trueup demo
  trueup demo --rows 100000 --seed 1 -o loans.html
""",
    )
    add(demo, "--output", "the page (default trueup-demo.html); the model goes next to it", default="trueup-demo.html")
    demo.add_argument(
        "--rows", type=integer(1000), default=40_000, metavar="N", help="number of loans (default 40000, at least 1000)"
    )
    add(demo, "--seed")
    add_common(demo, threads=False)


# trueup audit


def _add_audit(verbs: Verbs) -> None:
    audit = verbs.add_parser(
        "audit",
        help="audit the scores in files or a query",
        usage="trueup audit FILE [FILE ...] --outcome Y --prediction P [--by A,B,C] [-o report.html] [options]",
        description="""\
Test whether scores are calibrated: on all rows, on every value of the --by columns, and on every
combination of them. Reports the segments that are significantly miscalibrated.
""",
        epilog="""\
examples:
  trueup audit scores.parquet --outcome clicked --prediction p --by country,device,age
  trueup audit 'day-*.csv' --outcome y --prediction p --bins age=18:30:50 --bins opened=month
  trueup audit scores.csv --outcome species --prediction p_cat,p_dog,p_fox
  trueup audit scores.csv --outcome y --prediction p -o report.html -o summary.md --profile credit
  trueup audit scores.csv --outcome y --prediction p_trueup --against p -o compared.html
  trueup audit scores.csv --outcome status --positive late --prediction p --fail-if miscalibrated --tolerance 0.02
  trueup audit --sql "SELECT y, p, country FROM 'scores.parquet' WHERE day >= '2024-01-01'" \\
      --outcome y --prediction p --json - | jq .verdict

names: lists are separated by commas, and their options may be repeated. A column whose name contains
  a comma is found too: --by a --by "b,c" names the column "b,c" if it exists.

exit codes: 0 success; 1 --fail-if found what it names; 2 invalid input or usage; 3 an error in trueup;
  130 interrupted.
""",
    )
    rows = audit.add_argument_group("rows")
    _add_rows(rows)
    add_all(rows, "--memory", "--spill")
    columns = audit.add_argument_group("columns")
    _add_columns(columns)
    columns.add_argument(
        "--against",
        action="append",
        metavar="P",
        help="another score of the same rows to compare with, such as the one before a correction",
    )
    columns.add_argument("--fix", metavar="MODEL", help="the model between both scores; the page shows its corrections")
    segments = audit.add_argument_group("segments")
    add(segments, "--by", "by default all columns without a role")
    add(segments, "--depth", "1, 2 (default) or 3")
    add_all(segments, "--bins", "--categorical")
    segments.add_argument("--min-rows", type=integer(1), metavar="N", help="smaller segments are not tested (default 50)")
    segments.add_argument(
        "--max-cells",
        type=integer(1),
        metavar="N",
        help="maximum number of segments; the deepest are dropped first (default 2000000)",
    )
    test = audit.add_argument_group("test")
    add(test, "--alpha", "0.05 by default")
    test.add_argument(
        "--adjust",
        choices=("holm", "max", "bh", "by"),
        metavar="HOW",
        help="holm (default) and max control the familywise error rate, bh and by the false discovery rate",
    )
    test.add_argument(
        "--draws", type=integer(1), default=199, metavar="N", help="simulated data sets of --adjust max (default 199)"
    )
    add(test, "--seed")
    test.add_argument(
        "--fail-if",
        choices=("miscalibrated",),
        metavar="STATE",
        help="exit with code 1 if miscalibrated: if any segment is significantly miscalibrated",
    )
    test.add_argument(
        "--tolerance",
        type=at_least_zero,
        metavar="E",
        help="--fail-if ignores segments whose error is at most this; the error is the ECCE, in units of the score, "
        "which also counts errors that cancel on average",
    )
    output = audit.add_argument_group("output")
    add(
        output,
        "--output",
        "by its extension: .html a self-contained page, .md a summary, .csv all segments, .json all results; "
        "may be repeated",
        action="append",
    )
    output.add_argument("--report", metavar="FILE", help="write the page, whatever the extension")
    output.add_argument("--markdown", metavar="FILE", help="write a summary in Markdown; - is standard output")
    output.add_argument("--csv", metavar="FILE", help="write all segments as CSV; - is standard output")
    add(output, "--json")
    output.add_argument(
        "--profile",
        default="general",
        metavar="NAME",
        help=f"vocabulary, tables and defaults of a domain: {', '.join(PROFILE_NAMES[:-1])} or {PROFILE_NAMES[-1]} "
        "(default general), or a file such as mine.toml",
    )
    output.add_argument("--title", metavar="TEXT", help="the title of the page")
    add(output, "--top", default=None)
    add_common(output)


# trueup fit

METHOD_HELP = """mcgrad (default): boosted trees over features and score; auto: the simplest of several methods
that is good enough, possibly none; lsboost: small trees on level sets; depthtwo: one ensemble of depth-2 trees, checked
for saturation; hkrr, multiaccuracy: a readable list of patches; lore: the outcomes of similar rows; isotonic, platt,
temperature, beta, histogram: a curve of the score alone"""


def _add_fit(verbs: Verbs) -> None:
    fit = verbs.add_parser(
        "fit",
        help="fit a correction of the scores, and save it",
        usage="trueup fit FILE [FILE ...] --outcome Y --prediction P [--features A,B,C] -o MODEL [options]",
        description="""\
Fit a small model that corrects scores on the segments formed by the features, and save it. It is
evaluated on held-out rows: if nothing improves, it changes nothing (curves of the score alone,
isotonic to histogram, only with --cross-validate). Fit it on rows that the model of the scores was not trained on.
""",
        epilog="""\
examples:
  trueup fit scores.parquet --outcome clicked --prediction p --features country,device,age -o model.trueup
  trueup fit 'day-*.csv' --outcome y --prediction p --categorical zip -o model.trueup
  trueup fit scores.csv --outcome species --prediction p_cat,p_dog,p_fox -o model.trueup
  trueup fit sales.csv --outcome amount --prediction forecast --task regression -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --method auto -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --method platt --by region -o model.trueup
  trueup fit may.csv --outcome y --prediction p --validation june.csv -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --held-out held.csv -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --method lore --features x1,x2,x3 -o model.trueup
""",
    )
    rows = fit.add_argument_group("rows")
    _add_rows(rows)
    rows.add_argument(
        "--validation",
        action="append",
        metavar="FILE",
        help="validation rows, used instead of held-out rows of FILE, such as later ones",
    )
    add(rows, "--memory", "mcgrad only; the held-out rows differ, otherwise the model is the same")
    add_all(rows, "--spill", "--resume")
    columns = fit.add_argument_group("columns")
    _add_columns(columns)
    columns.add_argument(
        "--features", action="append", metavar="A,B,C", help="feature columns (default: all without a role)"
    )
    add(columns, "--categorical")
    method = fit.add_argument_group("method")
    method.add_argument("--method", default="mcgrad", choices=tuple(METHODS), metavar="NAME", help=METHOD_HELP)
    add(method, "--by", "one curve of the score per group, shrunk towards the pooled curve; with lore, rows of the same "
        "group are the similar rows")  # fmt: skip
    method.add_argument(
        "--cross-validate",
        action="store_true",
        help="keep a curve of the score only if it lowers the held-out loss (other methods always do)",
    )
    add(method, "--depth", "here a tree or a patch (mcgrad: 2)")
    method.add_argument(
        "--monotone", action="store_true", help="keep the order of two rows with the same features (mcgrad)"
    )
    add(method, "--seed")
    output = fit.add_argument_group("output")
    add(output, "--output", "the model, such as model.trueup", needed=True)
    output.add_argument(
        "--held-out",
        metavar="FILE",
        help="write the held-out rows with their held-out corrected scores, for trueup decide --labelled",
    )
    add(output, "--json")
    add_common(output)


# trueup predict and explain


def _add_predict(verbs: Verbs) -> None:
    predict = verbs.add_parser(
        "predict",
        help="correct the scores in files with a model",
        usage="trueup predict MODEL FILE [FILE ...] -o OUT [options]",
        description="""\
Correct the scores in files with a model: write all their columns and the corrected score.
The output file is replaced only after all rows have been written.
""",
        epilog="""\
examples:
  trueup predict model.trueup new.parquet -o scored.parquet
  trueup predict model.trueup 'day-*.csv' -o scored.csv --as p_fixed
  trueup predict model.trueup new.jsonl -o scored.csv.gz --only
  trueup predict model.trueup --sql "FROM 'new.parquet' WHERE day >= '2024-01-01'" -o scored.parquet
""",
    )
    rows = predict.add_argument_group("rows")
    _add_model(rows)
    _add_rows(rows)
    add_all(rows, "--memory", "--spill")
    output = predict.add_argument_group("output")
    add(output, "--output", "Parquet, CSV or JSON by its extension: scored.parquet", needed=True)
    add(output, "--as", "by default that of the score with the suffix _trueup; for classes one name each")
    output.add_argument("--only", action="store_true", help="write only the corrected score")
    add_common(output)


def _add_explain(verbs: Verbs) -> None:
    explain = verbs.add_parser(
        "explain",
        help="describe the corrections of a model, or of one row",
        usage="trueup explain MODEL [--row JSON] [options]",
        description="""\
Describe a model: its origin, the segments it corrects and by how much, and its held-out evaluation.
With --row, list the conditions that change one prediction; their contributions add up to the change.
""",
        epilog="""\
examples:
  trueup explain model.trueup
  trueup explain model.trueup --row '{"p": 0.2, "country": "BR", "age": 31}'
  trueup explain model.trueup --json - | jq .explanation.corrections
""",
    )
    _add_model(explain)
    explain.add_argument(
        "--row", metavar="JSON", help="""one row, such as '{"p": 0.2, "country": "BR"}'; other columns are missing"""
    )
    add_all(explain, "--top", "--json")
    add_common(explain, threads=False)


# trueup decide


def _add_decide(verbs: Verbs) -> None:
    decide = verbs.add_parser(
        "decide",
        help="find the cheapest threshold, and estimate its cost",
        usage="trueup decide FILE [FILE ...] --prediction P --cost-fn X --cost-fp Y [options]",
        description="""\
Find the cheapest rule for rows whose outcome is not known yet: from which score on to act, the expected
cost, and what the rule saves. Labelled rows correct the estimate for miscalibration. Neither the model nor
a correction of its scores may have been fitted on them; for scores corrected by trueup fit, use the file
that fit --held-out writes.
""",
        epilog="""\
examples:
  trueup decide new.parquet --prediction p --cost-fn 500 --cost-fp 20
  trueup decide new.parquet --prediction p --cost-fn 500 --cost-fp 20 --labelled old.parquet --outcome y
  trueup decide new.csv --prediction p --cost-fn 500 --cost-fp 20 --capacity 300 --by region,device
  trueup decide new.csv --prediction p --cost-fn 500 --cost-fp 20 --threshold 0.2 -o cost.svg
  trueup decide new.csv --prediction p --cost-fn 500 --cost-fp 20 --capacity 500 -o decided.csv
  trueup decide new.csv --prediction p --action pass:500,0 --action review:40,40 --action block:0,120 \\
      --capacity review=300 --json - | jq .cost.estimate

costs: per row, in any unit; negative costs are gains. --cost-fn is the cost of not acting on a positive
  row, --cost-fp of acting on a negative one. --action describes any other action by its costs on a positive
  and on a negative row.
""",
    )
    rows = decide.add_argument_group("rows")
    _add_rows(rows)
    add(rows, "--prediction", "the probability of the outcome 1", needed=True)
    add(rows, "--weight", "also of labelled rows")
    costs = decide.add_argument_group("costs")
    costs.add_argument("--cost-fn", type=finite, metavar="X", help="cost of a false negative")
    costs.add_argument("--cost-fp", type=finite, metavar="X", help="cost of a false positive")
    costs.add_argument(
        "--cost-tp", type=finite, metavar="X", help="cost of a true positive (default 0; negative is a gain)"
    )
    costs.add_argument("--cost-tn", type=finite, metavar="X", help="cost of a true negative (default 0)")
    costs.add_argument(
        "--action",
        action="append",
        metavar="NAME:X,Y",
        help="an action with its costs on a positive and on a negative row, instead of the costs above; at least two",
    )
    costs.add_argument("--threshold", type=number, metavar="T", help="evaluate this rule: act where the score is T or more")
    costs.add_argument("--capacity", action="append", metavar="N", help="act on at most N rows; with --action NAME=N")
    costs.add_argument(
        "--fixed-cost", action="append", metavar="X", help="cost of acting at all, paid once; with --action NAME=X"
    )
    labelled = decide.add_argument_group("labelled rows")
    labelled.add_argument(
        "--labelled",
        action="append",
        metavar="FILE",
        help="rows with outcomes that neither the model nor a correction was fitted on, such as those of fit --held-out; "
        "they correct the cost for miscalibration",
    )
    add(labelled, "--outcome", "0/1 or a probability, in the labelled rows")
    add_all(labelled, "--positive", "--unlabelled")
    segments = decide.add_argument_group("segments")
    add(segments, "--by", "whose costs are estimated too")
    add(segments, "--depth", "1 (default), 2 or 3")
    add_all(segments, "--bins", "--categorical")
    output = decide.add_argument_group("output")
    add(output, "--level", "0.9 by default", default=0.9)
    output.add_argument(
        "--target",
        default="rows",
        choices=("rows", "population"),
        metavar="OF",
        help="rows (default): the total cost of these rows; population: the mean cost per row of the population",
    )
    add(output, "--top")
    add(
        output,
        "--output",
        "by its extension: Parquet, CSV or JSON, the rows with their actions; .svg, .png or .pdf, a plot of the cost of "
        "each threshold (needs the extra plots); may be repeated",
        action="append",
    )
    add(output, "--as", "by default action")
    add(output, "--json")
    add_common(output)


# trueup completion


def _add_completion(verbs: Verbs) -> None:
    completion = verbs.add_parser(
        "completion",
        help="print a completion script for a shell",
        usage=f"trueup completion {'|'.join(SHELLS)}",
        description="Print a script with which a shell completes verbs, options and their values.",
        epilog="""\
examples:
  source <(trueup completion bash)                                  # this session; in ~/.bashrc every session
  trueup completion zsh > ~/.zfunc/_trueup                          # a directory of $fpath
  trueup completion fish > ~/.config/fish/completions/trueup.fish
""",
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS[:-1]) + f" or {SHELLS[-1]}")
    add_common(completion, threads=False)
