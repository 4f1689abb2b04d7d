"""`trueup decide`: find the cheapest rule for scores without outcomes, and estimate its cost."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup._validate import check_integer
from trueup.audits.text import number, shorten
from trueup.cli import console, io
from trueup.cli.costs import (
    action_phrase,
    as_amounts,
    cost_columns,
    describe_problem,
    parse_problem,
    read_costs,
    with_columns,
)
from trueup.cli.next_steps import PICTURES, after_decide
from trueup.cli.output import TextTable, show_page
from trueup.cli.parser import is_model
from trueup.data.chunks import format_to_write
from trueup.data.frame import read
from trueup.data.sql import column_names
from trueup.data.table import Table
from trueup.data.values import format_rows
from trueup.decisions.evaluate import ACT, RuleEvaluation, SegmentCosts, dominated_actions, threshold_of
from trueup.decisions.rowwise import RowRule
from trueup.decisions.rules import Rule
from trueup.errors import ArgumentError, ColumnError, FileError, IdentifierWarning, TrueupError, TrueupWarning
from trueup.metrics.inference import MIN_CLUSTERS
from trueup.metrics.result import to_plain
from trueup.modelfile import load

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from trueup._types import AnyArray
    from trueup.calibrators.model import Model
    from trueup.decisions import ExpectedCost

PICTURE_EXAMPLE, ROWS_EXAMPLE = "cost.svg", "decided.parquet"
CORRECTED_SUFFIX = "_trueup"
ACTION_COLUMN = "action"
MAX_BAR_WIDTH = 30
MIN_READABLE, MAX_READABLE = 1e-9, 1e15  # between these, amounts are written without an exponent
DIGITS, DIGITS_PER_ROW = 3, 4


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    problem = parse_problem(arguments)
    if problem.costs is not None:
        _check_row_costs(arguments)
    check_integer("depth", arguments.depth, 1, 3, optional=True, hint="2 combines two columns")
    _check_outputs(arguments)
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        progress.start("reading")
        table = _read(arguments)
        evidence = _read_model(arguments) if is_model(arguments.labelled) else None
        labelled = None if evidence is None else _evidence_table(evidence, table)
        if arguments.labelled is not None and evidence is None:
            labelled = _read(arguments, arguments.labelled, arguments.outcome)
        if problem.costs is not None:
            own = read_costs(problem.costs, arguments, table)
            known = None if labelled is None else read_costs(problem.costs, arguments, labelled, arguments.labelled)
            problem = problem._replace(costs=own, labelled_costs=known, names=problem.costs)
        progress.start("deciding")
        evaluation = RuleEvaluation(
            table, problem, labelled=labelled, bins=io.parse_bins(arguments.bins), depth=arguments.depth or 1,
            level=arguments.level, target=arguments.target,
            cross_fitted=evidence is not None or table.schema.prediction[0].endswith(CORRECTED_SUFFIX),
            uncorrected=None if evidence is None else evidence.held_out_before_,
        )  # fmt: skip
        text = DecisionText(evaluation)
        progress.note(*text.notes())
        if arguments.output:
            progress.start("writing")
        written = [_write(evaluation, path, arguments) for path in arguments.output or ()]
    if arguments.json is not None:
        io.write_json(arguments.json, text.data())
        written.append(f"wrote {arguments.json}")
    if arguments.quiet and arguments.json != io.STANDARD_OUTPUT:
        console.say(text.line())
    elif arguments.json != io.STANDARD_OUTPUT:
        below = ["", *written] if written else []
        show_page([*text.page(arguments.top), *below, *after_decide(evaluation, arguments)])
    return 0


def _check_row_costs(arguments: argparse.Namespace) -> None:
    """Raise if outputs or evidence need costs that are the same for all rows."""
    if is_model(arguments.labelled):
        raise ArgumentError(
            "costs in columns need labelled rows with these columns; a model has outcomes and scores only",
            hint="name a file, such as that of fit --held-out",
        )
    if any(map(_is_picture, arguments.output or ())):
        raise ArgumentError(
            "the cost by threshold is drawn for costs that are the same for all rows",
            hint=f"write the rows with their actions: -o {ROWS_EXAMPLE}",
        )


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Raise before the work if an output cannot be written; warn if a file is both labelled and to be decided on."""
    by_model = is_model(arguments.labelled)
    labelled = [] if by_model else io.local_files(arguments, arguments.labelled)
    labelled += [Path(path) for path in arguments.labelled if by_model] if arguments.labelled else []
    for path in io.local_files(arguments, arguments.files):
        if any(path.samefile(other) for other in labelled):
            warnings.warn(
                f"{path} is both labelled and to be decided on: the cost of its rows is known, and the interval is for "
                "other rows of the same kind",
                TrueupWarning,
                stacklevel=2,
            )
    if arguments.cluster is not None and not labelled:
        raise ArgumentError(
            "--cluster needs --labelled: it names a column of the labelled rows", hint="leave --cluster out"
        )
    outputs = list(arguments.output or ())
    for path in outputs:
        if _is_picture(path):
            require("matplotlib", extra="plots")
        else:
            _check_rows_output(path, arguments)
    if arguments.name is not None and all(map(_is_picture, outputs)):
        raise ArgumentError("--as needs -o: it names a column of the written rows", hint=f"add -o {ROWS_EXAMPLE}")
    outputs_and_examples = [(path, PICTURE_EXAMPLE) for path in (*outputs, arguments.json)]
    io.check_outputs(outputs_and_examples, [*io.source_files(arguments), *labelled])


def _is_picture(path: str) -> bool:
    return Path(path).suffix.lower() in PICTURES


def _check_rows_output(path: str, arguments: argparse.Namespace) -> None:
    """Raise if the extension of ``path`` is unknown, or if the input has a column with the name of the new one."""
    try:
        format_to_write(path)
    except FileError as error:
        raise ArgumentError(
            f"-o {path} has the extension neither of a picture ({', '.join(PICTURES)}) nor of rows (.parquet, .csv, .json)",
            hint=f"-o {PICTURE_EXAMPLE} draws the cost of each threshold; -o {ROWS_EXAMPLE} writes the rows with their "
            "actions; --json FILE writes all figures",
        ) from error
    name, *more = arguments.name or [ACTION_COLUMN]
    if not name.strip() or more:
        raise ArgumentError("--as needs one name", hint="write it as --as todo")
    if name.lower() in {known.lower() for known in column_names(io.input_files(arguments, arguments.files), arguments.sql)}:
        raise ColumnError(f"column {name!r} exists already", hint="name the new column with --as")


def _read(arguments: argparse.Namespace, paths: Sequence[str] | None = None, outcome: str | None = None) -> Table:
    """Read and validate the needed columns of the rows to decide on or, with an outcome, of the labelled rows."""
    try:
        rows = io.InputRows(arguments, paths)
        prediction = rows.find_all(arguments.prediction, "prediction")
        if len(prediction) != 1:
            raise ArgumentError(
                f"--prediction must name one column; got {len(prediction)}: {', '.join(prediction[:6])}",
                hint="name the column with the probability of the positive outcome",
            )
        by = rows.find_all(arguments.by, "segment column")
        outcome = rows.find_optional(outcome, "outcome")
        weight = rows.find_optional(arguments.weight, "weight")
        text = [name for name in rows.find_all(arguments.categorical, "categorical") if name in by]
        cluster = None if outcome is None else rows.find_optional(arguments.cluster, "cluster")
        data = rows.read([*prediction, outcome, weight, cluster, *by], text, outcome)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IdentifierWarning)  # an error below
            table = read(
                data, outcome=outcome, prediction=prediction[0], weight=weight, features=by, task="binary",
                categorical=text, unlabelled=arguments.unlabelled, cluster=cluster,
            )  # fmt: skip
        for name, reason in table.left_out.items():
            raise ColumnError(f"column {name!r} cannot form segments: {reason}", hint="leave it out of --by")
    except TrueupError as error:
        if "task" in error.settings:  # another task is no remedy here
            error = type(error)(error.message, hint="a decision needs probabilities, and outcomes that are 0 or 1")
        error.message = error.message if outcome is None else f"labelled rows: {error.message}"
        raise error from None
    return table


def _read_model(arguments: argparse.Namespace) -> Model:
    """Load the model that --labelled names; raise if it has no evidence, or segments need the columns of its rows."""
    model = load(arguments.labelled[0])
    if model.evidence is None:
        raise ArgumentError(
            f"{arguments.labelled[0]} has no evidence: held-out outcomes and scores",
            hint="fit it again with --keep-evidence, or name a file of labelled rows",
        )
    if model.schema.task != "binary":
        raise ArgumentError(
            f"the evidence of {arguments.labelled[0]} is of several classes, and a decision here of one score",
            hint="use tu.decisions in Python, with labelled=tu.load(path)",
        )
    if arguments.by is not None:
        raise ArgumentError(
            "--by needs labelled rows with these columns; a model has outcomes and scores only",
            hint="name a file, such as that of fit --held-out, or leave --by out",
        )
    return model


def _evidence_table(model: Model, table: Table) -> Table:
    """Return the held-out rows of a model as labelled rows with the columns of ``table``."""
    assert model.held_out_ is not None
    y, p, w = model.held_out_
    weight = None if (w == 1).all() else w
    return Table(replace(table.schema, outcome="outcome"), {}, p, y, weight, cluster=model.held_out_cluster_)


def _write(evaluation: RuleEvaluation, path: str, arguments: argparse.Namespace) -> str:
    """Write a picture or the rows with their actions, by the extension of ``path``; return a line that names the file."""
    if _is_picture(path):
        from trueup.reports.figures import draw_cost_curve
        from trueup.reports.figures.style import detached_axes

        figure = draw_cost_curve(evaluation.best, detached_axes()).figure
        with io.replacing_file(path, example=PICTURE_EXAMPLE) as temporary:
            figure.savefig(temporary, format=Path(path).suffix.lower()[1:], dpi=150)  # type: ignore[union-attr]
        return f"wrote {path}"
    (name,) = arguments.name or [ACTION_COLUMN]

    plain = parse_problem(arguments).costs
    find = io.InputRows(arguments).find if plain else None
    found = {} if find is None else {column: find(column, "cost") for column in cost_columns(plain)}

    def make(columns: dict[str, Any]) -> dict[str, AnyArray]:
        score = as_amounts(columns[evaluation.prediction])
        amounts = {column: as_amounts(columns[own]) for column, own in found.items()}
        known = ~np.isnan(score)
        for values in amounts.values():
            known &= np.isfinite(values)
        actions = np.full(len(score), None, object)
        if isinstance(evaluation.rule, RowRule) and plain is not None:
            costs = with_columns(plain, {column: values[known] for column, values in amounts.items()})
            actions[known] = evaluation.rule.apply(score[known], costs) if known.any() else None
        else:
            actions[known] = evaluation.rule.apply(score[known])
        return {name: actions}

    roles = {"prediction": [evaluation.prediction], "cost": list(found.values())}
    rows = io.write_rows(arguments, path, make, example=ROWS_EXAMPLE, roles=roles)
    assert rows is not None  # of a file
    return f"wrote {path}: {format_rows(rows)} with column {name}"


# Output


class AmountFormat:
    """Formats amounts with as many decimals as show ``digits`` digits of the largest; NaN becomes an empty text."""

    def __init__(self, amounts: Iterable[float], digits: int = DIGITS) -> None:
        largest = max((abs(amount) for amount in amounts), default=1.0) or 1.0
        self._decimals = max(0, digits - 1 - math.floor(math.log10(largest)))
        self._readable = MIN_READABLE <= largest < MAX_READABLE

    def __call__(self, value: float) -> str:
        """Format an amount."""
        if math.isnan(value):
            return ""
        if not self._readable:
            return f"{value + 0.0:.4g}"
        return f"{round(value, self._decimals) + 0.0:,.{self._decimals}f}"

    def interval(self, cost: ExpectedCost) -> str:
        """Format the interval of a cost."""
        return f"{self(cost.low)} to {self(cost.high)}"


class DecisionText:
    """Texts and tables of an evaluated rule."""

    def __init__(self, evaluation: RuleEvaluation) -> None:
        self.evaluation, self.problem, self.cost = evaluation, evaluation.problem, evaluation.cost
        self.level = f"{100 * self.cost.level:g}%"
        if self.cost.target == "population":
            self.amount = AmountFormat([self.cost.estimate or self.cost.high], DIGITS_PER_ROW)
        else:
            others = (other.cost.estimate for other in evaluation.alternatives)
            self.amount = AmountFormat([self.cost.high, self.cost.low, *others])

    def page(self, top: int) -> list[str | TextTable]:
        """Return all results as sentences and tables, which list the ``top`` most expensive segments."""
        blocks: list[Sequence[str | TextTable]] = [
            [self._alternatives()],
            self._confusion() if self.problem.error_costs else self._shares(),
            self._cost_curve(),
            *(self._segments(segments, top) for segments in self.evaluation.segments if top),
            [*self._action_notes(), *self._labelled_notes(), *self._row_notes()],
        ]
        return [*self._head(), *(part for block in blocks if block for part in ("", *block))]

    def line(self) -> str:
        """Return the rule and its cost on one line."""
        return f"{self._rule_sentence()}: {self._cost_sentence()}"

    def _cost_sentence(self) -> str:
        unit = "expected cost" if self.cost.target == "rows" else "expected cost per row"
        return f"{unit} {self.amount(self.cost.estimate)}, {self.level} interval {self.amount.interval(self.cost)}"

    def _rule_sentence(self) -> str:
        rule, prediction = self.evaluation.rule, self.evaluation.prediction
        if isinstance(rule, RowRule):
            if self.problem.error_costs:
                return f"act where that costs less than passing, at the {prediction} and the costs of the row"
            return f"the cheapest action at the {prediction} and the costs of each row"
        if len(rule.actions) == 1:
            name = rule.actions[0].name
            if not self.problem.error_costs:
                return f"{name}: every row"
            return "act on every row" if name == ACT else "act on no row"
        shown = [ACT] if self.problem.error_costs else [action.name for action in rule.actions]
        ranges = zip(rule.actions, rule.edges[:-1], rule.edges[1:], strict=True)
        return "; ".join(
            f"{action.name} where {prediction} is {_score_range(low, high)}"
            for action, low, high in ranges
            if action.name in shown
        )

    def _rule_name(self, rule: Rule | RowRule) -> str:
        if isinstance(rule, RowRule):
            return "each row by its costs"
        if not self.problem.error_costs:
            return f"{rule.actions[0].name}: every row" if len(rule.actions) == 1 else self._cheapest_name()
        if len(rule.actions) == 1:
            return "every row" if rule.actions[0].name == ACT else "no row"
        return f"{self.evaluation.prediction} {'>=' if rule.actions[1].name == ACT else '<'} {rule.edges[1]:.4g}"

    def _cheapest_name(self) -> str:
        return "cheapest rule" if self.problem.costs is None else "cheapest by score alone"

    def _head(self) -> list[str]:
        cost, amount = self.cost, self.amount
        rows = f"{_rows(cost.rows)} rows{' by weight' if self.evaluation.table.weight is not None else ''}"
        taken = {share.action: share.rows for share in cost.shares}
        count = f"{_rows(taken.get(ACT, 0.0))} of {rows}" if self.problem.error_costs else rows
        exceeded = [most for name, most in self.problem.capacity.items() if taken.get(name, 0.0) > most]
        over = "" if self.evaluation.fits else f", above the capacity of {_rows(exceeded[0])}"
        widths = " and ".join(f"{name} (±{amount(half)})" for name, half in cost.half_widths.items())
        change = f"{'raise' if cost.correction >= 0 else 'lower'} the estimate by {amount(abs(cost.correction))}"
        evidence = f"; {cost.evidence} {change}; it holds {cost.assumption}"
        if not cost.evidence:
            evidence = " and assumes calibrated scores; pass --labelled to correct for miscalibration"
        return [
            f"{self._rule_sentence()}: {count}{over}",
            self._cost_sentence(),
            describe_problem(self.problem),
            f"the interval covers {widths}{evidence}",
        ]

    def _alternatives(self) -> TextTable:
        evaluation, amount = self.evaluation, self.amount
        error_costs, interval = self.problem.error_costs, f"{self.level} interval"
        rules: list[tuple[Rule | RowRule, ExpectedCost, bool, ExpectedCost | None]] = [
            (evaluation.rule, self.cost, True, None)
        ]
        rules += [(other.rule, other.cost, other.fits, other.saving) for other in evaluation.alternatives]
        rows: list[tuple[str, ...]] = []
        for rule, cost, fits, saving in rules:
            acted = sum(share.rows for share in cost.shares if share.action == ACT)
            first = [
                self._rule_name(rule) + ("" if fits else " (above capacity)"),
                *([_rows(acted)] if error_costs else []),
            ]
            saved = ["", ""] if saving is None else [amount(saving.estimate), amount.interval(saving)]
            rows.append((*first, amount(cost.estimate), amount.interval(cost), *saved))
        names = ("act on", "rows") if error_costs else ("rule",)
        return TextTable((*names, "cost", interval, "rule saves", interval), rows, ("rows", "interval"))

    def _shares(self) -> list[str | TextTable]:
        shares, rule = self.cost.shares, self.evaluation.rule
        if isinstance(rule, RowRule):
            ranges = ["where cheapest" if price == 0 else "where cheapest, within capacity" for price in rule.prices]
            scores = dict(zip(rule.actions, ranges, strict=True))
        else:
            ends = zip(rule.edges[:-1], rule.edges[1:], strict=True)
            scores = {action.name: _score_range(*end) for action, end in zip(rule.actions, ends, strict=True)}
        amount = self.amount if self.cost.target == "rows" else AmountFormat([abs(share.cost) for share in shares])
        rows: list[tuple[str, ...]] = [
            (share.action, scores[share.action], _rows(share.rows), f"{share.positives:,.0f}", amount(share.cost))
            for share in shares
        ]
        table = TextTable(("action", "scores", "rows", "positives", "cost"), rows)
        return ["expected per action, before any correction", table]

    def _confusion(self) -> list[str | TextTable]:
        confusion = self.evaluation.confusion
        if confusion is None:
            return []
        counts = {
            "true positives": confusion.tp, "false negatives (misses)": confusion.fn,
            "false positives (false alarms)": confusion.fp, "true negatives": confusion.tn,
        }  # fmt: skip
        write = (lambda value: f"{value:,.0f}") if confusion.target == "rows" else number
        rows: list[tuple[str, ...]] = [(name, *map(write, values)) for name, values in counts.items()]
        for name, values in (("recall", confusion.recall), ("precision", confusion.precision)):
            if not any(map(math.isnan, values)):
                rows.append((name, *(f"{100 * value:.1f}%" for value in values)))
        head = "expected rows" if confusion.target == "rows" else "expected share of the population"
        return [TextTable((head, "estimate", "low", "high"), rows)]

    def _cost_curve(self) -> list[str | TextTable]:
        points = self.evaluation.cost_curve
        if not points:
            return []
        origin = min(0.0, *(point.cost for point in points))
        longest = (max(point.cost for point in points) - origin) or 1.0
        marks = {self.problem.threshold: "given"}
        marks[threshold_of(self.evaluation.best.rule)] = "best before correction" if self.cost.evidence else "best"
        rows: list[tuple[str, ...]] = []
        for threshold, acted, cost, fits in points:
            name = "every row" if threshold == 0 else "no row" if math.isinf(threshold) else f"{threshold:.4g}"
            name += f"  <- {marks[threshold]}" if threshold in marks else ""
            bar = _bar((cost - origin) / longest) if fits else "above capacity"
            rows.append((name, _rows(acted), self.amount(cost), bar))
        return [TextTable(("threshold", "rows", "cost", ""), rows, ("rows",), bars=True)]

    def _segments(self, segments: SegmentCosts, top: int) -> list[str | TextTable]:
        """Return a table of the ``top`` most expensive segments (with labelled rows, also the sum of all), and remarks."""
        error_costs, labelled = self.problem.error_costs, self.evaluation.labelled is not None
        actions = [ACT] if error_costs else action_names(self.evaluation.rule)
        ordered = sorted(segments.costs.items(), key=lambda item: (-item[1].estimate, item[0]))
        without, counts = set(segments.without_labelled), segments.labelled_rows
        shown = [(f"{name} *" if name in without else name, cost, counts[name]) for name, cost in ordered[:top]]
        if labelled:
            shown.append((f"sum of segments{' *' if without else ''}", segments.total, sum(counts.values())))
        rows: list[tuple[str, ...]] = []
        for name, cost, count in shown:
            taken = {share.action: share.rows for share in cost.shares}
            cells = [_rows(cost.rows), *(_rows(taken.get(action, 0.0)) for action in actions)]
            cells += [self.amount(value) for value in (cost.estimate, cost.low, cost.high)]
            rows.append((name, *cells, *([f"{count:,}"] if labelled else [])))
        acted = ["acted on"] if error_costs else [shorten(action) for action in actions]
        names = ("segment", "rows", *acted, "cost", f"low, {self.level}", f"high, {self.level}")
        table = TextTable((*names, *(["labelled"] if labelled else [])), rows, ("labelled", "rows"))
        lines: list[str | TextTable] = [table]
        hidden = [name in without for name, _ in ordered[top:]]
        if hidden:
            suffix = f", {sum(hidden):,} of them {self._lacking()}" if any(hidden) else ""
            lines.append(f"{len(hidden):,} more{suffix}: --top {len(ordered)}")
        if without:
            lines.append(f"* {self._lacking()}: not corrected, and without an interval")
        return lines

    def _lacking(self) -> str:
        """Return what segments without an interval lack."""
        labelled = self.evaluation.labelled
        if labelled is None or labelled.cluster is None:
            return "without labelled rows"
        return f"with labelled rows in fewer than {MIN_CLUSTERS} effective clusters"

    def _action_notes(self) -> Iterator[str]:
        problem = self.problem
        dominated = dominated_actions(problem.actions) if problem.costs is None else []
        for name in dominated:
            yield f"{action_phrase(problem, name)} is never worthwhile: another action costs less at every score"
        if problem.error_costs:
            return
        limits = ["capacities"] if problem.capacity else []
        limits += ["fixed costs"] if any(action.fixed for action in problem.actions) else []
        reason = f"given these scores, {' and '.join(limits)}" if limits else "no score lies where it is cheapest"
        used = {share.action for share in self.cost.shares if share.rows}
        for action in problem.actions:
            if action.name not in used and action.name not in dominated:
                yield f"no row gets {action.name}: {reason}"

    def _labelled_notes(self) -> Iterator[str]:
        evaluation, labelled = self.evaluation, self.evaluation.labelled
        if labelled is None:
            return
        assert labelled.outcome is not None
        columns = (labelled.outcome, labelled.prediction)
        observed, expected = (100 * float(np.average(column, weights=labelled.weight)) for column in columns)
        weighted = "" if labelled.weight is None else " by weight"
        verdict = "the scores are miscalibrated" if evaluation.miscalibrated else "no significant miscalibration"
        yield (
            f"{len(labelled):,} labelled rows: {observed:.3g}% positive{weighted}, {expected:.3g}% expected; {verdict} "
            f"(p = {number(evaluation.p_value, 2)})"
        )
        if evaluation.reversed_scores:
            yield (
                f"higher scores go with fewer positives (AUC {evaluation.auc:.3g} on the labelled rows): check whether the "
                "outcome is inverted"
            )
        yield (
            f"the score distribution {'differs from' if evaluation.shifted else 'matches'} that of the labelled rows "
            f"(largest difference of distribution functions {self.cost.distance:.3f})"
        )
        if labelled.unlabelled:
            rows = "1 labelled row" if labelled.unlabelled == 1 else f"{labelled.unlabelled:,} labelled rows"
            yield f"{rows} without an outcome {'was' if labelled.unlabelled == 1 else 'were'} dropped"

    def _row_notes(self) -> Iterator[str]:
        tables = (self.evaluation.table, self.evaluation.labelled)
        weightless = sum(table.weightless for table in tables if table is not None)
        if weightless:
            yield f"{format_rows(weightless)} of weight 0 {'was' if weightless == 1 else 'were'} dropped"
        if any(fixed and name in action_names(self.evaluation.rule) for name, fixed in self.problem.fixed.items()):
            if self.cost.target == "population":
                yield "the cost per row does not include fixed costs"
            elif self.evaluation.segments:
                yield "fixed costs are part of the total, but of no segment"

    def data(self) -> dict[str, Any]:
        """Return all results as plain data."""
        evaluation, rule = self.evaluation, self.evaluation.rule
        data: dict[str, Any] = {
            "rule": self._rule_sentence(),
            "threshold": rule.edges[1] if isinstance(rule, Rule) and len(rule.actions) == 2 else None,
            "alternatives": [{**other._asdict(), "rule": self._rule_name(other.rule)} for other in evaluation.alternatives],
            "by_segment": {name: cost for segments in evaluation.segments for name, cost in segments.costs.items()},
            "segment_sums": {
                " & ".join(segments.by): replace(segments.total, by_segment={}) for segments in evaluation.segments
            },
            "without_labelled_rows": [name for segments in evaluation.segments for name in segments.without_labelled],
            "labelled": None,
        }
        if evaluation.labelled is not None:
            names = ("calibration", "p_value", "miscalibrated", "shifted", "auc", "reversed_scores")
            data["labelled"] = {
                "rows": len(evaluation.labelled),
                "distance": self.cost.distance,
                **{name: getattr(evaluation, name) for name in names},
            }
        shown = {name: getattr(evaluation, name) for name in ("fits", "cost", "confusion", "cost_curve", "best")}
        plain: dict[str, Any] = to_plain({**data, **shown})
        return plain

    def notes(self) -> Iterator[str]:
        """Yield lines for --verbose on rows, costs, segments, rule and interval."""
        evaluation, cost, labelled = self.evaluation, self.cost, self.evaluation.labelled
        yield f"rows: {len(evaluation.table):,}, score {evaluation.prediction}"
        yield f"costs: {describe_problem(self.problem)}"
        if labelled is None:
            yield "no labelled rows: the scores are assumed to be calibrated"
        else:
            yield f"labelled rows: {len(labelled):,}; they change the cost by {cost.correction:+.6g}"
        for segments in evaluation.segments:
            without = len(segments.without_labelled)
            suffix = f", {without:,} of them {self._lacking()}" if without else ""
            yield f"segments by {' x '.join(segments.by)}: {len(segments.costs):,}{suffix}"
        yield f"rule: {'given by --threshold' if self.problem.threshold is not None else 'the cheapest by the scores'}"
        widths = ", ".join(f"{name} ±{half:.6g}" for name, half in cost.half_widths.items())
        yield f"interval at {self.level}, for {cost.target}: {widths}"


def action_names(rule: Rule | RowRule) -> list[str]:
    """Return the names of the actions of a rule."""
    return [action if isinstance(action, str) else action.name for action in rule.actions]


def _rows(count: float) -> str:
    """Format a number of rows, or their total weight."""
    return f"{round(count, 1):,.10g}"


def _score_range(low: float, high: float) -> str:
    if low == -math.inf:
        return f"below {high:.4g}"
    return f"{low:.4g} or more" if high == math.inf else f"{low:.4g} to below {high:.4g}"


def _bar(share: float) -> str:
    """Draw a bar in eighths of a character, or with # if the terminal cannot encode these."""
    eighths = round(8 * MAX_BAR_WIDTH * share)
    bar = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8] or ("▏" if share else "")
    try:
        bar.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "#" * math.ceil(MAX_BAR_WIDTH * share)
    return bar
