"""Options of the command line: one name has one meaning, type and help text for all verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIOR = "prior"  # the method that needs no outcome
MATRIX = "matrixscaling"  # the method for several classes only
METHODS = {
    "auto": "Auto", "mcgrad": "MCGrad", "lsboost": "LSBoost", "depthtwo": "DepthTwo", "hkrr": "HKRR",
    "multiaccuracy": "Multiaccuracy", "isotonic": "Isotonic", "platt": "Platt", "temperature": "Temperature",
    "beta": "Beta", "histogram": "Histogram", "additive": "Additive", "multiplicative": "Multiplicative",
    "logistic": "Logistic", "lore": "LoRe", MATRIX: "MatrixScaling", PRIOR: "PriorCorrection",
}  # fmt: skip
MODEL_SUFFIX = ".trueup"
TARGETS, DIALECTS = ("onnx", "sql", "c"), ("duckdb", "postgres", "bigquery", "spark")  # of exports
SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
PROFILE_NAMES = ("general", "credit", "ads", "health")  # built in; a file defines another
LIST: dict[str, Any] = {"action": "append"}
SWITCH: dict[str, Any] = {"action": "store_true"}


def number_or_name(text: str) -> float | str:
    """Return a number, or else the text: the name of a column."""
    try:
        return float(text)
    except ValueError:
        return text


def share(text: str) -> float:
    """Return a number, or a percentage such as 5% as one."""
    return float(text.removesuffix("%")) / 100.0 if text.endswith("%") else float(text)


def option(text: str, metavar: str | None = None, **settings: Any) -> dict[str, Any]:
    """Return keyword arguments of ``add_argument``; positionals omit metavar, since their key in OPTIONS (FILE) is used."""
    return {"help": text, **settings} if metavar is None else {"help": text, "metavar": metavar, **settings}


# One name has one meaning, type and help text for all verbs. A verb adds its defaults after a semicolon.
OPTIONS: Mapping[str, dict[str, Any]] = {
    # rows
    "FILE": option(
        "Parquet, CSV or JSON: a file, a pattern like 'day-*.csv', a directory, a URL such as s3://bucket/day.parquet, or "
        "- for standard input",
        dest="files", nargs="*",
    ),
    "MODEL": option("a model saved by trueup fit", dest="model", nargs="?"),
    "MODELS": option("models to compile for (default: everything)", dest="models", nargs="*"),
    "SHELL": option(f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}", dest="shell", choices=SHELLS),
    "--format": option(
        "the format of the files (default: by their names; of standard input: by its content)",
        "FORMAT", choices=("parquet", "csv", "json"),
    ),
    "--encoding": option("the encoding of CSV and JSON, such as latin-1 or utf-16 (default utf-8)", "NAME"),
    "--output-format": option(
        "of -o -: csv (default), or json, with one record per line", "FORMAT", choices=("csv", "json")
    ),
    "--sql": option("a DuckDB query; it reads the FILEs as the table data", "QUERY"),
    "--memory": option("memory budget, such as 2GB; files are then read in chunks", "SIZE"),
    "--spill": option("spill directory of --memory (default: the temporary directory)", "DIR"),
    "--row": option("""one row, such as '{"p": 0.2, "country": "BR"}'; other columns are missing""", "JSON"),
    "--details": option("list every condition that --row meets, and what it adds to the logit", **SWITCH),
    "--rows": option("number of rows", "N", type=int),
    "--validation": option("validation rows, used instead of held-out rows of FILE, such as later ones", "FILE", **LIST),
    "--labelled": option(
        "rows with outcomes that neither the model nor a correction was fitted on, such as those of fit --held-out; or a "
        "model saved with --keep-evidence",
        "FILE", **LIST,
    ),
    # columns
    "--outcome": option("the outcome column", "Y"),
    "--prediction": option("the score column", "P", **LIST),
    "--positive": option("the outcome to count as 1; every other counts as 0", "VALUE"),
    "--classes": option("the class of each prediction column, if there are several", "A,B", **LIST),
    "--logits": option("the prediction columns hold logits: of the classes, or of one probability", **SWITCH),
    "--weight": option("the column of sample weights", "W"),
    "--sampling": option("shares of the rows with outcome 1 and 0 that were kept in the data, such as 1,0.1", "P,N"),
    "--cluster": option("the column that identifies rows that belong together, such as those of one customer", "ID"),
    "--task": option(
        "auto (default), binary, or regression for amounts",
        "TASK", default="auto", choices=("auto", "binary", "regression"),
    ),
    "--family": option(
        "the distribution of a real outcome, if it is known: poisson, gamma or tweedie; --weight is then the exposure",
        "FAMILY", choices=("poisson", "gamma", "tweedie"),
    ),
    "--variance-power": option("exponent of the variance of --family tweedie (1.5 by default)", "X", type=float),
    "--unlabelled": option(
        "rows without an outcome: error (default) or drop", "HOW", default="error", choices=("error", "drop")
    ),
    "--against": option("another score of the same rows to compare with, such as the one before a correction", "P", **LIST),
    "--reference": option(
        "files with earlier scores in the --prediction column, such as those at development; the profile credit shows how "
        "far the scores have moved (PSI)",
        "FILE", **LIST,
    ),
    "--exposure": option(
        "the column of exposures; the profile credit shows observed/expected weighted by it, beside that by number", "EAD"
    ),
    "--fix": option("the model between both scores; the page shows its corrections", "MODEL"),
    "--features": option("feature columns (default: all without a role)", "A,B,C", **LIST),
    "--exclude": option(
        "columns that the correction must not use, such as protected attributes; explain reports its effect on them", "A,B",
        **LIST,
    ),
    # segments
    "--by": option("columns that form segments", "A,B,C", **LIST),
    "--depth": option("how many columns a segment combines", "N", type=int),
    "--bins": option(
        "bins of numbers and dates: 10 (default) quantile bins for all; age=5 or age=18:30:50 for one column (age=18: is "
        "one edge); opened=month, or year, quarter, week, day (default: by the span of the dates)",
        "SPEC", **LIST,
    ),
    "--categorical": option("numeric columns to read as categories, such as zip codes", "A,B", **LIST),
    "--min-rows": option("smaller segments are not tested (default 50)", "N", type=int),
    "--max-cells": option("maximum number of segments; the deepest are dropped first (default 2000000)", "N", type=int),
    # test
    "--alpha": option("significance level of the family of tests", "A", type=float),
    "--adjust": option(
        "holm (default) and max control the familywise error rate, bh and by the false discovery rate",
        "HOW", choices=("holm", "max", "bh", "by"),
    ),
    "--draws": option("simulated data sets of --adjust max (default 199)", "N", type=int, default=199),
    "--seed": option("seed of random numbers (default 0)", "N", type=int, default=0),
    "--fail-if": option(
        "a gate: exit with code 1 if miscalibrated: if any segment is significantly miscalibrated and, with --tolerance, "
        "material; material: the same, and needs --tolerance; possibly-material: also if an error may exceed it; "
        "exit with code 4 if nothing, or too little, could be tested: untestable, which every gate includes",
        "STATE,STATE", choices=("miscalibrated", "material", "possibly-material", "untestable"), **LIST,
    ),
    "--min-tested": option(
        "exit with code 4 if fewer segments could be tested: a number, or a share of all that have rows, such as 80%%", "N"
    ),
    "--min-rows-total": option("exit with code 4 if there are fewer rows with outcomes", "N", type=int),
    "--tolerance": option(
        "the largest error that does not matter: a difference of observed and expected mean (0.02), or a percentage of the "
        "expected mean (10%%); errors that certainly exceed it are material",
        "E",
    ),
    # monitor
    "--state": option("the file with the state of the monitor, made if it does not exist, such as m.watch", "FILE"),
    "--time": option("the column with the date at which a row was scored", "T"),
    "--maturity": option("the age at which an outcome is final, such as 90d; younger rows wait", "AGE"),
    "--period": option("evidence is added by periods of this length (default 7d)", "LENGTH"),
    "--since": option("leave out rows that were scored before this date", "DATE"),
    "--now": option("the date up to which rows are known (default: the latest of the rows)", "DATE"),
    "--id": option("the column that identifies a row, so that one that is given twice counts once", "ID"),
    "--budget": option(
        "life (default): alpha is the chance of ever raising a false alarm; year: of one by the end of a year",
        "TIME", choices=("life", "year"),
    ),
    "--json-lines": option("write one JSON object per alarm and one for the state; - is standard output", "FILE"),
    # method
    "--method": option(
        "mcgrad (default): boosted trees over features and score; auto: the simplest of several methods that is good "
        "enough, possibly none; lsboost: small trees on level sets; depthtwo: one ensemble of depth-2 trees, checked for "
        "saturation; hkrr, multiaccuracy: a readable list of patches; lore: the outcomes of similar rows; logistic: a "
        "logistic regression on score and features; isotonic, platt, temperature, beta, histogram: a curve of the score "
        "alone; matrixscaling: the logits of several classes times a matrix; additive, multiplicative: one number added to "
        "all scores, or one factor; prior: another prevalence, without outcomes",
        "NAME", default="mcgrad", choices=tuple(METHODS),
    ),
    "--prevalence": option("the mean of the scores", "X"),
    "--reference-prevalence": option(
        "the prevalence at which scores are calibrated, if there are no --labelled rows (prior)", "X", type=float
    ),
    "--cross-validate": option(
        "keep a curve of the score only if it lowers the held-out loss (other methods always do)", **SWITCH
    ),
    "--monotone": option("keep the order of two rows with the same features (mcgrad)", **SWITCH),
    "--resume": option("save finished rounds in this file, and continue from it if it exists", "FILE"),
    # plans
    "--ratio": option(
        "the error to be found: observed/expected (default 1.2, 20%% more than expected, unless --rows is given)", "X"
    ),
    "--power": option("probability with which it shall be found (default 80%%)", "A", type=share),
    "--share": option("share of the rows that are in the segment, such as 5%%", "A", type=share),
    "--segments": option("number of segments, each with the same share of alpha", "N", type=int),
    "--columns": option("instead: the number of levels of each column that forms segments, such as 10,5,4", "N,N", **LIST),
    "--combined": option(
        "how many columns define the segment (default 1 with --share, else 0: all rows); with --by, at most so many",
        "N", type=int,
    ),
    "--spread": option("standard deviation of the logits of the scores (default 1), instead of a FILE", "X", type=float),
    "--looks": option("number of audits of growing data that share alpha (default 1)", "N", type=int),
    "--cluster-size": option("rows per cluster in the segment, such as loans per customer", "N", type=float),
    "--icc": option("correlation of the residuals of two rows of a cluster", "X", type=float),
    "--monitor": option("also plan a monitor that may be looked at any time", **SWITCH),
    "--weekly-rows": option("rows in all that arrive in a week: delays of --monitor in weeks", "N", type=float),
    "--change-week": option("week in which the error of --monitor begins (default 52)", "N", type=int),
    # costs
    "--cost-fn": option("cost of a false negative, or the column with that of each row", "X", type=number_or_name),
    "--cost-fp": option("cost of a false positive, or the column with that of each row", "X", type=number_or_name),
    "--cost-tp": option("cost of a true positive (default 0; negative is a gain)", "X", type=number_or_name),
    "--cost-tn": option("cost of a true negative (default 0)", "X", type=number_or_name),
    "--action": option(
        "an action with its costs on a positive and on a negative row, instead of the costs above; at least two",
        "NAME:X,Y", **LIST,
    ),
    "--threshold": option("evaluate this rule: act where the score is T or more", "T", type=float),
    "--capacity": option("act on at most N rows; with --action NAME=N", "N", **LIST),
    "--fixed-cost": option("cost of acting at all, paid once; with --action NAME=X", "X", **LIST),
    "--level": option("coverage of the intervals (default 0.9)", "A", type=float, default=0.9),
    "--target": option(
        "rows (default): the total cost of these rows; population: the mean cost per row of the population",
        "OF", default="rows", choices=("rows", "population"),
    ),
    "--on-error": option(
        "raise (default): stop at a row whose score is missing or invalid; nan: leave its corrected score empty, count it",
        "HOW", default="raise", choices=("raise", "nan"),
    ),
    # output
    "--output": option("the file to write", "OUT"),
    "--report": option("write the page, whatever the extension", "FILE"),
    "--markdown": option("write a summary in Markdown; - is standard output", "FILE"),
    "--csv": option("write all segments as CSV; - is standard output", "FILE"),
    "--json": option("write all results as JSON; - is standard output, without any other text", "FILE"),
    "--held-out": option(
        "write the held-out rows with their held-out corrected scores, for trueup decide --labelled; an audit of them is "
        "nearly blind",
        "FILE",
    ),
    "--keep-evidence": option(
        "keep held-out outcomes and scores in the model, for decide --labelled MODEL; such a file holds data", **SWITCH
    ),
    "--as": option("the name of the new column", "NAME", dest="name", **LIST),
    "--to": option("onnx, sql or c; by default by the extension of OUT: .onnx, .sql or .h", choices=TARGETS),
    "--dialect": option(f"of SQL: {', '.join(DIALECTS[:-1])} or {DIALECTS[-1]}", choices=DIALECTS, default="duckdb"),
    "--table": option("the table that the SQL statement scores", "NAME", default="scores"),
    "--keep": option("columns that the SQL statement returns beside the scores", "A,B", **LIST),
    "--prefix": option("what functions and types of the C header begin with", "NAME", default="trueup"),
    "--no-verify": option("do not compare the export with the model", dest="verify", action="store_false"),
    "--only": option("write only the corrected score", **SWITCH),
    "--profile": option(
        f"vocabulary, tables and defaults of a domain: {', '.join(PROFILE_NAMES[:-1])} or {PROFILE_NAMES[-1]} "
        "(default general), or a file such as mine.toml",
        "NAME", default="general",
    ),
    "--title": option("the title of the page", "TEXT"),
    "--top": option("number of table rows to print (default 20)", "N", type=int, default=20),
    "--threads": option("number of threads; all cores by default", "N", type=int),
    "--cache": option(
        "the directory of compiled kernels (default: NUMBA_CACHE_DIR, or beside the package, or that of the user)", "DIR"
    ),
    "--quiet": option("print at most one line, and no progress", **SWITCH),
    "--verbose": option("print the choices made, with reasons, on standard error", **SWITCH),
    "--debug": option("show the traceback of an unexpected error", **SWITCH),
}  # fmt: skip
COMMON = ("--quiet", "--verbose", "--debug")


class Use(NamedTuple):
    """An option of one verb: its key in OPTIONS, an addition to its help, whether it is required, and changed settings."""

    name: str
    more: str = ""
    needed: bool = False
    changes: Mapping[str, Any] = {}


class Verb(NamedTuple):
    """A subcommand such as audit: its help texts, and its options by group."""

    help: str
    usage: str
    description: str
    epilog: str
    groups: Mapping[str, tuple[str | Use, ...]]
