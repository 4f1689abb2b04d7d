"""The argument parser: options and help texts of all verbs (subcommands). Light imports keep `trueup --help` fast."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from trueup._validate import check_integer, did_you_mean
from trueup.cli import console
from trueup.cli.next_steps import option_name
from trueup.cli.options import COMMON, LIST, MODEL_SUFFIX, OPTIONS, PRIOR, SHELLS, Use, Verb
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _typeshed import SupportsWrite

OPTION_SIMILARITY, CHOICE_SIMILARITY = 0.75, 0.7  # difflib ratios above which a word is suggested
FILES, MODEL = Use("FILE", needed=True), Use("MODEL", needed=True)
OUTCOME = Use("--outcome", "0/1, a probability, a number, or a class", needed=True)
PREDICTION = Use("--prediction", "for classes one column each: p0,p1,p2", needed=True)

DESCRIPTION = """\
Audit the calibration of any model's scores on every segment, and correct them.

  trueup demo
  trueup audit scores.parquet --outcome y --prediction p --by country,device
  trueup fit scores.parquet --outcome y --prediction p --features country,device -o model.trueup
  trueup predict model.trueup new.parquet -o scored.parquet
  trueup explain model.trueup
  trueup export model.trueup -o model.sql
  trueup decide new.parquet --prediction p --cost-fn 500 --cost-fp 20
  trueup watch log.parquet --state m.watch --outcome y --prediction p --by country --time t --maturity 90d
  trueup plan --prevalence 0.02 --ratio 1.2 --share 5% --columns 10,5,4
"""

VERBS = {
    "demo": Verb(
        "run an audit and a correction on simulated loans",
        "trueup demo [options]",
        """\
Audit simulated loan scores with planted errors, fit a correction on half of the loans, audit the
other half again, and write both audits to one page and the model next to it.
""",
        """\
examples:
  trueup demo
  trueup demo --rows 100000 --seed 1 -o loans.html
""",
        {
            "options": (
                Use("--output", "the page (default trueup-demo.html); the model goes next to it",
                    changes={"default": "trueup-demo.html"}),
                Use("--rows", "simulated loans (default 40000, at least 1000)", changes={"default": 40_000}),
                "--seed", *COMMON,
            ),
        },
    ),
    "audit": Verb(
        "audit the scores in files or a query",
        "trueup audit FILE [FILE ...] --outcome Y --prediction P [--by A,B,C] [-o report.html] [options]",
        """\
Test whether scores are calibrated: on all rows, on every value of the --by columns, and on every
combination of them. Reports the segments that are significantly miscalibrated.
""",
        """\
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

exit codes: 0 success; 1 --fail-if: found what it names; 2 invalid input or usage; 3 an error in trueup;
  4 --fail-if, --min-tested or --min-rows-total: nothing, or less than required, could be tested;
  130 interrupted (Ctrl-C); 143 terminated (SIGTERM); 129 the terminal was closed (SIGHUP).
""",
        {
            "rows": (FILES, "--format", "--encoding", "--sql", "--memory", "--spill"),
            "columns": (
                OUTCOME, PREDICTION, "--positive", "--classes", "--weight", "--sampling", "--cluster", "--task", "--family",
                "--variance-power", "--unlabelled", "--against", "--fix", "--reference", "--exposure",
            ),
            "segments": (
                Use("--by", "by default all columns without a role"), Use("--depth", "1, 2 (default) or 3"), "--bins",
                "--categorical", "--min-rows", "--max-cells",
            ),
            "test": (
                Use("--alpha", "0.05 by default, for one look; use less if audits are repeated"),
                "--adjust", "--draws", "--seed", "--fail-if", "--min-tested", "--min-rows-total", "--tolerance",
            ),
            "output": (
                Use("--output", "by its extension: .html a self-contained page, .md a summary, .csv all segments, .json "
                    "all results; may be repeated", changes=LIST),
                "--report", "--markdown", "--csv", "--json", "--profile", "--title",
                Use("--top", changes={"default": None}), "--threads", *COMMON,
            ),
        },
    ),
    "fit": Verb(
        "fit a correction of the scores, and save it",
        "trueup fit FILE [FILE ...] --outcome Y --prediction P [--features A,B,C] -o MODEL [options]",
        """\
Fit a small model that corrects scores on the segments formed by the features, and save it. It is
evaluated on held-out rows: if nothing improves, it changes nothing (curves of the score alone, isotonic
to histogram, only with --cross-validate). Fit it on rows that the model of the scores was not trained on.
""",
        """\
examples:
  trueup fit scores.parquet --outcome clicked --prediction p --features country,device,age -o model.trueup
  trueup fit 'day-*.csv' --outcome y --prediction p --categorical zip -o model.trueup
  trueup fit scores.csv --outcome species --prediction p_cat,p_dog,p_fox -o model.trueup
  trueup fit scores.csv --outcome label --prediction z0,z1,z2 --logits --method temperature -o model.trueup
  trueup fit sales.csv --outcome amount --prediction forecast --task regression -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --method auto -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --method platt --by region -o model.trueup
  trueup fit may.csv --outcome y --prediction p --validation june.csv -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --held-out held.csv -o model.trueup
  trueup fit scores.csv --outcome y --prediction p --method lore --features x1,x2,x3 -o model.trueup
  trueup fit sample.csv --outcome y --prediction p --sampling 1,0.1 -o model.trueup
  trueup fit scores.csv --prediction p --method prior --sampling 1,0.1 -o model.trueup
  trueup fit new.csv --prediction p --method prior --prevalence estimate --labelled old.csv --outcome y -o model.trueup
""",
        {
            "rows": (
                FILES, "--format", "--encoding", "--sql", "--validation",
                Use("--labelled", "from before the prevalence changed (prior)"),
                Use("--memory", "mcgrad only; the held-out rows differ, otherwise the model is the same"), "--spill",
                "--resume",
            ),
            "columns": (
                Use("--outcome", "0/1, a probability, a number, or a class; optional for prior", needed=True), PREDICTION,
                "--positive", "--classes", "--logits", "--weight",
                Use("--sampling", "the fit weights rows by 1 / these shares; with prior, those of the rows that the score "
                    "was fitted on"),
                Use("--cluster", "held-out rows are whole clusters"), "--task", "--unlabelled", "--features",
                "--exclude", "--categorical",
            ),
            "method": (
                "--method",
                Use("--by", "one curve of the score per group, shrunk towards the pooled curve; with lore, rows of the "
                    "same group are the similar rows"),
                "--cross-validate", Use("--depth", "here a tree or a patch"), "--monotone",
                Use("--prevalence", "corrected ones shall have it; or estimate: from these scores and --labelled "
                    "rows from before (prior)"),
                "--reference-prevalence", "--seed",
            ),
            "output": (
                Use("--output", "the model, such as model.trueup", needed=True), "--held-out", "--keep-evidence", "--json",
                "--threads",
                *COMMON,
            ),
        },
    ),
    "predict": Verb(
        "correct the scores in files with a model",
        "trueup predict MODEL FILE [FILE ...] -o OUT [options]",
        """\
Correct the scores in files with a model: write all their columns and the corrected score.
The output file is replaced only after all rows have been written.
""",
        """\
examples:
  trueup predict model.trueup new.parquet -o scored.parquet
  trueup predict model.trueup 'day-*.csv' -o scored.csv --as p_fixed
  trueup predict model.trueup new.jsonl -o scored.csv.gz --only
  curl -s https://example.org/new.csv | trueup predict model.trueup - -o - | head
  trueup predict model.trueup --sql "FROM 'new.parquet' WHERE day >= '2024-01-01'" -o scored.parquet
""",
        {
            "rows": (MODEL, FILES, "--format", "--encoding", "--sql", "--memory", "--spill"),
            "output": (
                Use("--output", "Parquet, CSV or JSON by its extension: scored.parquet; - is standard output", needed=True),
                "--output-format",
                Use("--as", "by default that of the score with the suffix _trueup; for classes one name each"),
                "--only", "--threads", "--on-error", *COMMON,
            ),
        },
    ),
    "explain": Verb(
        "describe the corrections of a model, or of one row",
        "trueup explain MODEL [--row JSON [--details]] [options]",
        """\
Describe a model: its origin, the segments whose scores it raises and lowers, and its held-out evaluation.
With --row, list what each feature adds to one prediction; the contributions add up to the change.
""",
        """\
examples:
  trueup explain model.trueup
  trueup explain model.trueup --row '{"p": 0.2, "country": "BR", "age": 31}'
  trueup explain model.trueup --row '{"p": 0.2, "country": "BR"}' --details --top 100
  trueup explain model.trueup --json - | jq .explanation.corrections
""",
        {"options": (
            MODEL, "--row", "--details",
            Use("--top", "with --row, of contributions (default 5)", changes={"default": None}), "--json", *COMMON,
        )},
    ),
    "export": Verb(
        "write a model as an ONNX graph, an SQL statement or a C header",
        "trueup export MODEL -o OUT [--to onnx|sql|c] [options]",
        """\
Write a correction for systems without trueup, and check that it computes the same scores: the export is run
on rows at and one unit of the last place beside every cut of the model, on missing, unseen, extreme, invalid
and random values. An export that is not exact is not written. The comparison is written to OUT.parity.json.
""",
        """\
examples:
  trueup export model.trueup -o model.onnx
  trueup export model.trueup -o model.sql --table loans --keep id
  trueup export model.trueup -o model.sql --table loans --dialect postgres
  trueup export model.trueup -o model.h --prefix loans
""",
        {
            "options": (
                MODEL, Use("--output", "by its extension .onnx, .sql or .h", needed=True), "--to", "--dialect", "--table",
                "--keep", "--prefix", "--no-verify", *COMMON,
            ),
        },
    ),
    "decide": Verb(
        "find the cheapest threshold, and estimate its cost",
        "trueup decide FILE [FILE ...] --prediction P --cost-fn X --cost-fp Y [options]",
        """\
Find the cheapest rule for rows whose outcome is not known yet: from which score on to act, the expected
cost, and what the rule saves. Labelled rows correct the estimate for miscalibration. Neither the model nor
a correction of its scores may have been fitted on them; for scores corrected by trueup fit, use the file
that fit --held-out writes.
""",
        """\
examples:
  trueup decide new.parquet --prediction p --cost-fn 500 --cost-fp 20
  trueup decide new.parquet --prediction p --cost-fn 500 --cost-fp 20 --labelled old.parquet --outcome y
  trueup decide new.csv --prediction p --cost-fn 500 --cost-fp 20 --capacity 300 --by region,device
  trueup decide new.csv --prediction p --cost-fn 500 --cost-fp 20 --threshold 0.2 -o cost.svg
  trueup decide new.csv --prediction p --cost-fn 500 --cost-fp 20 --capacity 500 -o decided.csv
  trueup decide new.csv --prediction p --cost-fn loss --cost-fp margin -o decided.csv
  trueup decide new.csv --prediction p --action pass:500,0 --action review:40,40 --action block:0,120 \\
      --capacity review=300 --json - | jq .cost.estimate

costs: per row, in any unit; negative costs are gains. --cost-fn is the cost of not acting on a positive
  row, --cost-fp of acting on a negative one. --action describes any other action by its costs on a positive
  and on a negative row. A cost may be the name of a column, such as exposure times loss given default: each
  row then gets the action that is cheapest at its own costs.
""",
        {
            "rows": (
                FILES, "--format", "--encoding", "--sql",
                Use("--prediction", "the probability of the outcome 1", needed=True),
                Use("--weight", "also of labelled rows"),
            ),
            "costs": (
                "--cost-fn", "--cost-fp", "--cost-tp", "--cost-tn", "--action", "--threshold", "--capacity", "--fixed-cost",
            ),
            "labelled rows": (
                Use("--labelled", "they correct the cost for miscalibration"),
                Use("--outcome", "0/1 or a probability, in the labelled rows"), "--positive", "--unlabelled",
                Use("--cluster", "in the labelled rows"),
            ),
            "segments": (
                Use("--by", "whose costs are estimated too"), Use("--depth", "1 (default), 2 or 3"), "--bins",
                "--categorical",
            ),
            "output": (
                "--level", "--target", "--top",
                Use("--output", "by its extension: Parquet, CSV or JSON, the rows with their actions; .svg, .png or .pdf, "
                    "a plot of the cost of each threshold (needs the extra plots); may be repeated", changes=LIST),
                Use("--as", "by default action"), "--json", "--threads", *COMMON,
            ),
        },
    ),
    "watch": Verb(
        "monitor calibration over time, and raise alarms",
        "trueup watch FILE [FILE ...] --state STATE [--outcome Y --prediction P --time T --maturity AGE] [options]",
        """\
Add the rows of a scored log, with the outcomes that are final by now, to the state of a monitor, and report
whether the scores are calibrated so far. It may be run every day: the chance of any false alarm over the
whole life of the monitor is at most alpha. A state that exists has its settings; only its file is named.
""",
        """\
examples:
  trueup watch log.parquet --state m.watch --outcome y --prediction p --by region,device --time t --maturity 90d
  trueup watch log.parquet --state m.watch --fail-if alarm
  trueup watch 'day-*.csv' --state m.watch -o watch.html -o summary.md
  trueup watch log.parquet --state m.watch --since 2026-06-01 --memory 2GB --json-lines - | jq .segment

exit codes: 0 success, with or without alarms; 1 --fail-if: there is an alarm; 2 invalid input or usage;
  3 an error in trueup; 4 --fail-if: no period has closed yet; 130 interrupted (Ctrl-C); 143 terminated (SIGTERM);
  129 the terminal was closed (SIGHUP).
""",
        {
            "rows": (
                FILES, "--format", "--encoding", "--sql", Use("--memory", "period by period"), "--spill", "--since",
                "--now",
                Use("--reference", "here rows that fix the segments and the shares that drift is compared with (default: "
                    "the first FILEs)"),
            ),
            "state": (Use("--state", needed=True),),
            "columns": (
                Use("--outcome", "0/1 or a probability"), "--prediction", "--positive", "--time", "--id",
                Use("--cluster", "those of one period count as one observation"), "--sampling",
                Use("--unlabelled", "of mature rows; zero counts them as rows without an event",
                    changes={"default": None, "choices": ("error", "drop", "zero")}),
            ),
            "test": (
                "--maturity", "--period", Use("--alpha", "0.05 by default, over the whole life of the monitor"), "--budget",
                Use("--tolerance", "here a percentage; smaller errors raise no alarm"),
                Use("--fail-if", changes={
                    "choices": ("alarm", "new-alarm", "untestable"),
                    "help": "a gate: alarm: exit with code 1 if there is any alarm so far; new-alarm: if this run raised a "
                    "distinct one; untestable, which every gate "
                    "includes: with code 4 if there is none, and no period has closed yet",
                }),
            ),
            "segments": (
                Use("--by", "by default all columns without a role"), Use("--depth", "1, 2 (default) or 3"), "--bins",
                "--categorical", "--min-rows",
            ),
            "output": (
                Use("--output", "by its extension: .html a self-contained page, .md a summary, .csv the alarms, .json the "
                    "state; may be repeated", changes=LIST),
                "--json-lines", "--profile", "--title", Use("--top", "of alarms", changes={"default": 10}), "--threads",
                *COMMON,
            ),
        },
    ),
    "plan": Verb(
        "how many rows an audit or a monitor needs, or what so many rows show",
        "trueup plan [FILE ...] [--prediction P] [--prevalence X] [--ratio X] [--rows N] [options]",
        """\
Plan an audit or a monitor: how many rows find an error of a given observed/expected (--ratio), which errors
so many rows show (--rows), or with which power (both). The scores are those of a pilot, with or without
outcomes, or have a mean (--prevalence) and a spread.
""",
        """\
examples:
  trueup plan --prevalence 0.02 --ratio 1.2 --share 5% --columns 10,5,4
  trueup plan --prevalence 0.02 --rows 200000 --share 5% --segments 400
  trueup plan pilot.parquet --prediction p --by region,product --ratio 1.2
  trueup plan pilot.parquet --prediction p --share 5% --columns 10,5,4 --monitor --weekly-rows 20000
  trueup plan --prevalence 0.1 --cluster-size 4 --icc 0.2 --looks 12 -o plan.svg
""",
        {
            "scores": (
                "FILE", "--format", "--encoding", "--sql", Use("--prediction", "of the pilot"),
                Use("--prevalence", "instead of a FILE, such as 2%%"), "--spread",
            ),
            "error": (
                "--ratio", Use("--rows", "in all, that there are"), "--power",
            ),
            "segments": (
                Use("--by", "plan for each of their levels in the pilot"), "--share", "--segments", "--columns",
                "--combined", Use("--depth", "1, 2 (default) or 3"), "--bins", "--categorical", "--min-rows",
            ),
            "test": (
                Use("--alpha", "over all segments and looks, 0.05 by default"), "--looks", "--cluster-size", "--icc",
                "--monitor", "--weekly-rows", "--change-week",
            ),
            "output": (
                Use("--output", "a picture, by its extension .svg, .png or .pdf (needs the extra plots)"), "--json",
                Use("--top", changes={"default": None}), "--threads", *COMMON,
            ),
        },
    ),
    "warm": Verb(
        "compile kernels into a cache directory",
        "trueup warm [MODEL ...] [--cache DIR] [options]",
        """\
Compile what audits, fits and predictions run, so that no later process waits for it: in images of
containers, or after an installation. With models, compile what scores their rows, and nothing else.
""",
        """\
examples:
  trueup warm
  trueup warm clicks.trueup --cache /opt/kernels      # later processes need NUMBA_CACHE_DIR=/opt/kernels
  NUMBA_CPU_NAME=generic trueup warm --cache /opt/kernels   # for other processors, which need both variables
""",
        {"options": ("MODELS", "--cache", *COMMON)},
    ),
    "completion": Verb(
        "print a completion script for a shell",
        f"trueup completion {'|'.join(SHELLS)}",
        "Print a script with which a shell completes verbs, options and their values.",
        """\
examples:
  source <(trueup completion bash)                                  # this session; in ~/.bashrc every session
  trueup completion zsh > ~/.zfunc/_trueup                          # a directory of $fpath
  trueup completion fish > ~/.config/fish/completions/trueup.fish
""",
        {"options": ("SHELL", *COMMON)},
    ),
}  # fmt: skip

# Options that need another one or exclude it, by verb, with a hint.
MEMORY_HINT, OUTCOME_HINT = "set the memory budget, such as --memory 2GB", "name the outcome column of the labelled rows"
BY_HINT, ACTION_HINT = "name the columns that form segments: --by age", "describe every action with --action"
UNLABELLED_HINT = "the rows to decide on have no outcome; name a file of rows that have: --labelled old.csv"
RELATIONS = {
    "audit": [
        ("spill", "needs", "memory", MEMORY_HINT),
        ("fix", "needs", "against", "name the score before the correction: --prediction p_trueup --against p"),
    ],
    "fit": [
        ("spill", "needs", "memory", MEMORY_HINT),
        ("held_out", "excludes", "memory", "pass validation rows with --validation, and score them with trueup predict"),
        ("keep_evidence", "excludes", "memory", "held-out rows are kept of fits in memory only"),
        ("validation", "excludes", "sampling", "add a column of weights to both files, and name it with --weight"),
        ("held_out", "excludes", "sampling", "use --keep-evidence: decide --labelled MODEL then has the weights"),
        ("held_out", "excludes", "validation", "score that file with trueup predict: the model was not fitted on its rows"),
    ],
    "watch": [("spill", "needs", "memory", MEMORY_HINT)],
    "plan": [
        ("by", "needs", "prediction", "name the score column of the pilot: --prediction p"),
        ("weekly_rows", "needs", "monitor", "add --monitor"),
        ("spread", "needs", "prevalence", "a FILE has scores, and so a spread"),
    ],
    "decide": [
        ("labelled", "needs", "outcome", OUTCOME_HINT),
        ("positive", "needs", "outcome", OUTCOME_HINT),
        ("outcome", "needs", "labelled", UNLABELLED_HINT),
        ("bins", "needs", "by", BY_HINT),
        ("depth", "needs", "by", BY_HINT),
        *(("action", "excludes", f"cost_{name}", ACTION_HINT) for name in ("fn", "fp", "tp", "tn")),
        ("action", "excludes", "threshold", "leave --threshold out: the cheapest rule is computed"),
    ],
}
MINIMA = {"seed": 0, "threads": 1, "top": 0}
MINIMA_OF = {"demo": {"rows": 1000}}


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raise if rows are missing, integers are too small, or options do not belong together."""
    given = {name for name, value in vars(arguments).items() if value is not None and value != [] and value is not False}
    if is_model(getattr(arguments, "labelled", None)):
        for name in {"outcome", "positive", "cluster"} & given if arguments.verb == "decide" else ():
            raise ArgumentError(f"--labelled {arguments.labelled[0]} has its outcomes", hint=f"leave --{name} out")
        given |= {"outcome"}
    if hasattr(arguments, "files") and not given & {"files", "sql", *(("prevalence",) if arguments.verb == "plan" else ())}:
        more = ", or --prevalence 0.02" if arguments.verb == "plan" else ""
        raise ArgumentError("no FILE was named", hint=f"name files, or pass a query with --sql{more}")
    for name, low in (MINIMA | MINIMA_OF.get(arguments.verb, {})).items():
        check_integer(name, getattr(arguments, name, None), low, optional=True)
    for name, relation, other, hint in RELATIONS.get(arguments.verb, ()):
        if name in given and (other in given) == (relation == "excludes"):
            first, second = option_name(name), option_name(other)
            needs, excludes = f"{first} needs {second}", f"{first} and {second} cannot be combined"
            raise ArgumentError(needs if relation == "needs" else excludes, hint=hint)
    by = getattr(arguments, "by", None)
    if arguments.verb != "audit" and by is not None and not any(names.strip(" ,") for names in by):
        raise ArgumentError("--by names no column", hint="write it as --by region,product, or leave it out")


def is_model(paths: Sequence[str] | None) -> bool:
    """Return whether these are not rows but one model, by its extension."""
    return paths is not None and len(paths) == 1 and paths[0].lower().endswith(MODEL_SUFFIX)


class Parser(argparse.ArgumentParser):
    """An argument parser that prints clean text, survives closed pipes and suggests similar options and values."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, add_help=False, **settings)
        self._words: list[str] = []
        self._suggestion = ""
        self.add_argument("-h", "--help", action="help", help="show this help and exit")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if message and file is sys.stdout:
            console.say(message.rstrip("\n"))
        elif message:
            console.complain(message.rstrip("\n"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but list all missing required arguments in one error."""
        self._words = sys.argv[1:] if args is None else list(args)
        parsed, rest = super().parse_known_args(args, namespace)
        needed = [action for action in self._actions if getattr(action, "needed", False)]
        missing = [action for action in needed if not getattr(parsed, action.dest)]
        if getattr(parsed, "sql", None) is not None:  # the rows come from the query
            missing = [action for action in missing if action.dest != "files"]
        if getattr(parsed, "method", None) == PRIOR:
            missing = [action for action in missing if action.dest != "outcome"]
        only_files = [action.dest for action in missing] == ["files"]  # reported later, with a better hint
        if missing and not only_files and not (rest and self._suggest_option()):
            names = ["/".join(action.option_strings) or str(action.metavar) for action in missing]
            self.error(f"the following arguments are required: {', '.join(names)}")
        return parsed, rest

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            needed = "an integer" if action.type is int else "a number"
            message = f"{action.option_strings[-1]} must be {needed}; got {arg_string!r}"
            raise argparse.ArgumentError(None, message) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        several = isinstance(action, argparse._AppendAction) and isinstance(value, str)
        names = [item.strip() for item in value.split(",")] if several else [str(value)]
        if choices and (name := next((name for name in names if name not in choices), None)) is not None:
            option = " ".join(action.option_strings[-1:])
            self._suggestion = did_you_mean(
                name.lower(), choices, CHOICE_SIMILARITY, lambda choice: f"{option} {choice}".strip()
            )
            raise argparse.ArgumentError(action, f"invalid choice: {name!r} (choose from {', '.join(choices)})")

    def error(self, message: str) -> NoReturn:
        """Print the error and a hint, and exit with code 2."""
        console.complain(f"error: {message}")
        verb = [word for word in self._words[:1] if word in self._verbs()]
        help_command = " ".join([self.prog, *verb, "--help"])
        console.complain(f"hint: {self._suggest_option() or self._suggestion or f'see {help_command}'}")
        self.exit(2)

    def _suggest_option(self) -> str:
        """Return "did you mean --by?" for the first word that looks like an option of the verb, and is none."""
        verb = self._verbs().get(self._words[0] if self._words else "", self)
        known = list(dict.fromkeys(verb._long_options()))
        for word in (text.split("=")[0] for text in self._words if text.startswith("--") and text != "--"):
            if word not in known and (hint := did_you_mean(word, known, OPTION_SIMILARITY, str, marks="-")):
                return hint
        return ""

    def _long_options(self) -> Iterator[str]:
        """Yield the long options, such as --output, of this parser and of its verbs."""
        for action in self._actions:
            yield from (word for word in action.option_strings if word.startswith("--"))
        for verb in self._verbs().values():
            yield from verb._long_options()

    def _verbs(self) -> dict[str, Parser]:
        actions = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return {name: verb for action in actions for name, verb in action.choices.items()}


class _Version(argparse.Action):
    """Print the version, which is looked up only on demand."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        import trueup

        console.say(f"trueup {trueup.__version__}")
        parser.exit(0)


def build_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(prog="trueup", description=DESCRIPTION, epilog="trueup VERB --help shows the options of a verb")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parsers = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, verb in VERBS.items():
        verb_parser = parsers.add_parser(
            name, help=verb.help, usage=verb.usage, description=verb.description, epilog=verb.epilog
        )
        for title, uses in verb.groups.items():
            group = verb_parser if title == "options" else verb_parser.add_argument_group(title)
            for use in (Use(item) if isinstance(item, str) else item for item in uses):
                settings = {**OPTIONS[use.name], **use.changes}
                settings["help"] = f"{settings['help']}; {use.more}" if use.more else settings["help"]
                if use.name.startswith("-"):
                    names = ["-o", "--output"] if use.name == "--output" else [use.name]
                else:
                    names, settings["metavar"] = [settings.pop("dest")], use.name
                group.add_argument(*names, **settings).needed = use.needed  # type: ignore[attr-defined]
    return parser
