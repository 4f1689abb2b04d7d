"""The history of a fit: the losses of its rounds, the number chosen and the reason."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.stopping import CROSS_VALIDATION, EXPECTED, IMPORTED, TRAINING_ROWS, Evaluation, total_shrunken_gain
from trueup.data.columns import frame_like
from trueup.metrics.result import html_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHOWN_ROUNDS = 16  # in the repr of a history


@dataclass(frozen=True)
class Round:
    """One round of a fit (or one patch), and its evaluation."""

    number: int  # 0 is the base score
    trees: int  # number of trees, or other learners, in each model of the round
    theta: float  # the factor of the round
    loss: float  # mean loss of the evaluation rows, by the measure of the history
    gain: float  # decrease of the loss from the best round before
    error: float  # standard error of the gain
    kept: bool
    threshold: float | None = None  # standard errors that the gain had to exceed, 0 of a line; None if tested with others
    p_value: float | None = None  # of the score test by which a line was kept
    training_loss: float | None = None  # of the rows that the models were trained on, by the same measure, if computed
    # After each tree of the round, the held-out loss of the models, before the factor. Not saved with a model.
    tree_losses: tuple[float, ...] = field(default=(), compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that model files have as plain data."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "tree_losses"}
        return {name: value for name, value in plain.items() if value is not None}


@dataclass(frozen=True)
class CapacityTrial:
    """A capacity of the trees that a fit compared with others on held-out rows, before the first round of trees."""

    depth: int | None
    leaves: int  # depth and leaves are maximums of a tree
    trees: int  # number of trees with the lowest loss
    loss: float  # mean loss of the held-out rows, less what averaging the models of all folds is expected to gain
    difference: float  # of the loss to the lowest one
    error: float  # standard error of the difference
    chosen: bool

    @property
    def name(self) -> str:
        """Return the capacity as text: "depth 2 (tables)" or "16 leaves"."""
        return "depth 2 (tables)" if self.depth == 2 else f"{self.leaves} leaves"


@dataclass(frozen=True)
class History:
    """The rounds of a fit, the number chosen, and the reason."""

    rounds: tuple[Round, ...]  # from the base score on
    chosen: int  # number of rounds of the model; 0 leaves the scores unchanged
    reason: str  # one sentence
    evaluated_on: str  # the rows of the losses: as `evaluation_rows` returns them, or "leave-one-out"
    measure: str  # "log loss", "squared error", or the name of the score of a stopping rule
    capacities: tuple[CapacityTrial, ...] = ()  # that were compared, simplest first
    stopped: str = ""  # why a fit ended before its rule was done, such as at its time limit

    @classmethod
    def of(
        cls,
        evaluations: Sequence[Evaluation],
        chosen: int,
        reason: str,
        evaluated_on: str,
        measure: str,
        trees: Sequence[int] = (),
        thetas: Sequence[float] = (),
        training: Sequence[float] = (),
        p_values: Sequence[float | None] = (),
    ) -> History:
        """Build from evaluations of the base score and each round; trees, thetas and p-values of lines are per round.

        ``training`` are the training losses of the base score and of each round.
        """
        losses = [*training, *[None] * (len(evaluations) - len(training))]
        rounds = [Round(0, 0, 1.0, evaluations[0].loss, 0.0, 0.0, kept=True, training_loss=losses[0])]
        for number, (loss, gain, error, threshold) in enumerate(evaluations[1:], start=1):
            count, theta = trees[number - 1] if trees else 0, thetas[number - 1] if thetas else 1.0
            p_value = p_values[number - 1] if p_values else None
            rounds.append(
                Round(number, count, theta, loss, gain, error, number <= chosen, threshold, p_value, losses[number])
            )
        return cls(tuple(rounds), chosen, reason, evaluated_on, measure)

    @property
    def loss_before(self) -> float:
        """Return the mean loss of the evaluation rows before the correction."""
        return self.rounds[0].loss

    @property
    def loss_after(self) -> float:
        """Return the mean loss of the evaluation rows after the chosen number of rounds."""
        return self.rounds[self.chosen].loss

    @property
    def is_evaluated(self) -> bool:
        """Return whether there were outcomes to evaluate on; if not, the losses assume that corrected scores are right."""
        return self.evaluated_on not in (EXPECTED, IMPORTED)

    @property
    def is_imported(self) -> bool:
        """Return whether the rounds are those of another package, whose losses are not known."""
        return self.evaluated_on == IMPORTED

    @property
    def is_cross_fit(self) -> bool:
        """Return whether held-out scores are those of models of other folds: their errors cancel within groups."""
        return self.chosen > 0 and self.evaluated_on == CROSS_VALIDATION

    @property
    def shrunken_gain(self) -> float:
        """Return the gain that the chosen rounds can be expected to have on new rows; NaN if no rows were held out.

        `loss_after` is that of rounds that were kept because it is low, and so optimistic. See `shrink_gain`.
        """
        if self.evaluated_on in (TRAINING_ROWS, EXPECTED, IMPORTED):
            return math.nan
        return total_shrunken_gain([Evaluation(r.loss, r.gain, r.error, r.threshold) for r in self.rounds], self.chosen)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        plain = {name: value for name, value in vars(self).items() if value or name != "stopped"}
        plain["rounds"] = [round_.to_dict() for round_ in self.rounds]
        return plain | {"capacities": [asdict(trial) for trial in self.capacities]}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> History:
        """Restore a history from what `to_dict` returned."""
        capacities = tuple(CapacityTrial(**trial) for trial in fields.get("capacities", ()))
        fields = {**fields, "rounds": tuple(Round(**round_) for round_ in fields["rounds"]), "capacities": capacities}
        if "judged_by" in fields:  # its name in the first files
            fields["evaluated_on"] = fields.pop("judged_by")
        return cls(**fields)

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per round, as a frame of the library of ``like``; a dict of arrays without it."""
        names = ("number", "trees", "theta", "loss", "gain", "error", "kept")
        columns = {name: np.array([getattr(round_, name) for round_ in self.rounds]) for name in names}
        for name in ("threshold", "p_value", "training_loss"):
            values = [getattr(round_, name) for round_ in self.rounds]
            columns[name] = np.array([math.nan if value is None else value for value in values])
        return frame_like(columns, like)

    def __repr__(self) -> str:
        if not self.is_evaluated:
            return f"History: {self.reason}"
        trees, theta = any(r.trees for r in self.rounds), any(r.theta != 1 for r in self.rounds)
        trained = any(r.training_loss is not None for r in self.rounds)
        head = (
            f"  round{'  trees' * trees}{'  theta' * theta}{'  training' * trained}  {self.measure} ({self.evaluated_on})"
        )
        lines = [f"History: {self.reason}", head]
        for r in self.rounds:
            columns = f"  {r.trees or ('line' if r.number else 0):>5}" * trees + f"  {r.theta:.3f}" * theta
            error = f" (s.e. {r.error:.6f})" if r.error else ""
            test = "" if r.p_value is None else f"  (score test: p = {r.p_value:.2g})"
            change = "" if r.number == 0 else f"  {-r.gain:+.6f}{error}{'' if r.kept else '  not kept'}{test}"
            training = "" if r.training_loss is None else f"{r.training_loss:.6f}"
            lines.append(f"  {r.number:>5}{columns}{f'  {training:>8}' * trained}  {r.loss:.6f}{change}")
        if len(lines) > SHOWN_ROUNDS + 3:
            hidden = len(lines) - 2 - SHOWN_ROUNDS
            lines[2 + SHOWN_ROUNDS // 2 : -SHOWN_ROUNDS // 2] = [f"  ... {hidden} more: to_frame() returns all rounds"]
        if self.stopped:
            lines.append(f"  {self.stopped}")
        if self.capacities:
            named = [f"{one.name} {one.loss:.6f}{' (chosen)' * one.chosen}" for one in self.capacities]
            lines.append(f"  {self._capacity_measure} compared on some folds: {', '.join(named)}")
        return "\n".join(lines)

    @property
    def _capacity_measure(self) -> str:
        """Return the measure of the capacities, which is the loss whatever the score of the stopping rule."""
        return self.measure if self.measure in ("log loss", "squared error") else "loss"

    def _repr_html_(self) -> str:
        if not self.is_evaluated:
            return html_table(f"History: {self.reason}", (), [])
        trees = any(r.trees for r in self.rounds)
        trained = any(r.training_loss is not None for r in self.rounds)
        heads: tuple[str, ...] = (
            "round",
            "trees",
            "theta",
            f"{self.measure} ({self.evaluated_on})",
            "change",
            "s.e.",
            "kept",
        )
        heads += (f"{self.measure} (training rows)",) * trained
        rows = [
            (str(r.number), "line" if trees and r.number and not r.trees else str(r.trees), f"{r.theta:.3f}",
             f"{r.loss:.6f}", f"{-r.gain:+.6f}", f"{r.error:.6f}", "yes" if r.kept else "no",
             *(["" if r.training_loss is None else f"{r.training_loss:.6f}"] if trained else []))
            for r in self.rounds
        ]  # fmt: skip
        half = SHOWN_ROUNDS // 2
        hidden = len(rows) - 2 * half
        notes = [f"{hidden:,} more rounds in between: to_frame() returns all"] if hidden > 1 else []
        shown = [*rows[:half], *rows[-half:]] if hidden > 1 else rows
        return html_table(f"History: {self.reason}", heads, shown, notes=notes)
