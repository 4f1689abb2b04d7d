"""PriorCorrection: scores moved to the prevalence of another population."""

from __future__ import annotations

import math
import warnings
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_fraction
from trueup.calibrators import stopping
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.explain import Explanation, summarise_changes
from trueup.calibrators.history import History
from trueup.calibrators.prior.map import OddsMap, PrevalenceEstimate
from trueup.calibrators.prior.prevalence import NewRows, estimate_prevalence, solve_factor
from trueup.calibrators.stopping import EXPECTED, TRAINING_ROWS, task_loss
from trueup.data.sampling import Sampling
from trueup.errors import ArgumentError, DataError, ShiftWarning
from trueup.metrics.inputs import Scored, validate_scores

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.model import Map
    from trueup.data.table import Table

ESTIMATE = "estimate"
MIXTURE_ALPHA = 0.001  # false alarm rate of the warning that scores do not look like those under label shift
EXAMPLES = 'pass sampling={"negative": 0.1}, prevalence=0.03, or prevalence="estimate"'


@dataclass(eq=False, repr=False)
class PriorCorrection(Calibrator):
    """Move scores to another prevalence: undo down-sampling, meet a stated prevalence, or estimate it from new scores.

    The odds of every score are multiplied by one factor (an offset of the logit), by Bayes' formula. It is right if the
    distribution of everything else given the outcome is the same in both populations (label shift, prior shift); it does
    not correct other miscalibration. ``fit`` needs no outcome.

    Parameters
    ----------
    prediction : column name
        The score to correct, a probability. For an array a position, 0 by default; a one-dimensional array is the
        prediction itself.
    sampling : mapping, optional
        The shares of positive and negative rows that were kept in the rows the score was fitted on, as
        ``{"negative": 0.1}``; one that is not named is 1. The odds are multiplied by negative / positive.
    prevalence : float or "estimate", optional
        The mean that corrected scores of the rows of ``fit`` shall have (the central tendency). "estimate" estimates it
        from their scores, with an interval: see Notes.
    reference_prevalence : float, optional
        With "estimate": the prevalence at which the scores are calibrated, if there are no labelled rows. The interval then
        assumes calibrated scores.
    labelled : tuple of arrays, fitted calibrator, or loaded model with evidence, optional
        With "estimate": outcomes and scores, ``(y, p)`` or ``(y, p, weight)``, of rows from before the shift that the model
        was not fitted on; or a calibrator with held-out rows. They have the reference prevalence, and correct the estimate
        for miscalibration.
    level : float
        Coverage of the interval of the estimated prevalence.
    exclude : column names
        Columns that the correction must not use; it uses the score alone.
    task : {"auto", "binary"}
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome, if ``fit`` has one.

    Attributes
    ----------
    offset_ : float
        What is added to every logit: the logarithm of the factor of the odds.
    estimate_ : PrevalenceEstimate or None
        The estimated prevalence and its interval.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, on the rows of ``fit`` if it has an outcome; else what is expected if corrected scores
        are calibrated.

    Notes
    -----
    The estimate is the prevalence of maximum likelihood, the limit of the EM algorithm of Saerens et al. (2002). Labelled
    rows correct it, as their scores given the outcome are those of the new rows; the interval then covers the sampling of
    both. ``fit`` raises if the scores cannot tell: if at the reference prevalence the interval of as many rows
    with calibrated scores would contain 0 or 1, or if labelled rows do not show that scores of positives are higher.
    It warns with labelled rows if the new scores are not a mixture of those of positives and negatives (chi-squared test
    at 0.001): then it is not the prevalence alone that has changed.

    References
    ----------
    Elkan (2001), "The foundations of cost-sensitive learning", theorem 2. King & Zeng (2001), "Logistic regression in rare
    events data". Saerens, Latinne & Decaestecker (2002), "Adjusting the outputs of a classifier to new a priori
    probabilities", doi:10.1162/089976602753284446. Fieller (1954), "Some problems in interval estimation".

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> scores = np.array([0.1, 0.5, 0.9])                   # of a model fitted with one in ten negatives
    >>> tu.PriorCorrection(sampling={"negative": 0.1}).fit(scores).predict(scores).round(4).tolist()
    [0.011, 0.0909, 0.4737]
    >>> float(tu.PriorCorrection(prevalence=0.2).fit(scores).predict(scores).mean().round(12))
    0.2
    >>> random = np.random.default_rng(0)
    >>> y = random.random(20_000) < np.repeat([0.1, 0.3], 10_000)     # the prevalence has tripled
    >>> p = 1 / (1 + 9 * np.exp(2 - 2 * random.normal(2 * y)))        # calibrated at 0.1
    >>> fix = tu.PriorCorrection(prevalence="estimate", labelled=(y[:10_000], p[:10_000])).fit(p[10_000:])
    >>> fix.estimate_.low < 0.3 < fix.estimate_.high
    True
    """

    needs_outcome = False
    classes = None

    prediction: Any = None
    _: KW_ONLY
    sampling: Any = None
    prevalence: Any = None
    reference_prevalence: float | None = None
    labelled: Any = None
    level: float = 0.95
    exclude: Any = ()
    task: str = "auto"
    unlabelled: str = "error"

    @property
    def offset_(self) -> float:
        """What is added to every logit."""
        return math.log(self._odds_map().factor)

    @property
    def estimate_(self) -> PrevalenceEstimate | None:
        """The estimated prevalence and its interval; None if it was stated."""
        return self._odds_map().estimate

    def _odds_map(self) -> OddsMap:
        fitted = self._fitted().map
        assert isinstance(fitted, OddsMap)
        return fitted

    def _fit_map(self, table: Table, progress: Any) -> FitResult:  # noqa: ARG002
        self._check_single_prediction(table)
        if table.schema.task == "regression":
            raise ArgumentError("PriorCorrection corrects probabilities; got task='regression'", 'leave task="auto"')
        fitted, reason = self._fit_factor(table)
        after = fitted.apply((), table.prediction)
        return FitResult(fitted, self._evaluate(table, after, reason), after)

    def _fit_factor(self, table: Table) -> tuple[OddsMap, str]:
        """Validate the parameters; return the map, and a sentence that states where its factor comes from."""
        if (self.sampling is None) == (self.prevalence is None):
            given = "neither" if self.sampling is None else "both"
            raise ArgumentError(f"pass either sampling or prevalence; got {given}", EXAMPLES, parameter="prevalence")
        estimated = isinstance(self.prevalence, str)
        if not estimated and (self.labelled is not None or self.reference_prevalence is not None):
            name = "labelled" if self.labelled is not None else "reference_prevalence"
            raise ArgumentError(f'{name} is for prevalence="estimate"', f"leave {name} out", parameter=name)
        if self.sampling is not None:
            sampling = Sampling.parse(self.sampling)
            fitted = OddsMap(sampling.ratio)
            kept = ", ".join(f"{share:g} of the {name} rows" for name, share in sampling._asdict().items() if share != 1)
            return fitted, f"undid a sample that kept {kept or 'all rows'}: {fitted.describe()}"
        if estimated:
            return self._estimate(table)
        check_fraction("prevalence", self.prevalence, hint='or "estimate"')
        before = float(np.average(table.prediction, weights=table.weight))
        fitted = OddsMap(solve_factor(table.prediction, table.weight, float(self.prevalence)))
        return fitted, f"moved the mean score from {before:.4g} to the stated {self.prevalence:g}: {fitted.describe()}"

    def _estimate(self, table: Table) -> tuple[OddsMap, str]:
        check_fraction("level", self.level)
        if self.prevalence != ESTIMATE:
            problem = f'prevalence must be a number or "estimate"; got {self.prevalence!r}'
            raise ArgumentError(problem, EXAMPLES, parameter="prevalence")
        if (self.labelled is None) == (self.reference_prevalence is None):
            given = "neither" if self.labelled is None else "both"
            raise ArgumentError(
                f'prevalence="estimate" needs either labelled or reference_prevalence; got {given}',
                hint="labelled=(y, p) has rows from before; reference_prevalence=0.1 is theirs, if p is calibrated",
                parameter="labelled",
            )
        labelled, cluster = (None, None) if self.labelled is None else _read_labelled(self.labelled)
        if labelled is None:
            check_fraction("reference_prevalence", self.reference_prevalence)
            reference = float(self.reference_prevalence or 0)
        else:
            reference = float(np.average(labelled.y, weights=labelled.w))
            if not 0 < reference < 1:
                raise DataError(f"every labelled outcome is {reference:g}", hint="pass labelled rows of both outcomes")
        weight = np.ones(len(table)) if table.weight is None else table.weight
        rows = NewRows(table.prediction, weight, stopping.cluster_numbers(table))
        found = estimate_prevalence(rows, reference, labelled, float(self.level), cluster)
        if found.p_value is not None and found.p_value < MIXTURE_ALPHA:
            warnings.warn(
                "the scores are not a mixture of those of labelled positives and negatives "
                f"(p = {found.p_value:.2g}): more than the prevalence has changed\n"
                "hint: the estimate assumes label shift; check what else differs between these rows and the labelled ones",
                ShiftWarning,
                stacklevel=6,
            )
        factor = found.estimate / (1 - found.estimate) * (1 - reference) / reference
        fitted = OddsMap(factor, found)
        return fitted, f"estimated {found!r}: {fitted.describe()}"

    def _evaluate(self, table: Table, after: FloatArray, reason: str) -> History:
        loss = task_loss("binary")
        if table.outcome is not None:
            losses = (loss.per_row(table.y, loss.apply_link(scores)) for scores in (table.prediction, after))
            _, evaluations = stopping.choose_rounds(losses, table.weight, cluster=stopping.cluster_numbers(table))
            return History.of(evaluations, 1, reason, TRAINING_ROWS, loss.measure)
        # The mean loss is linear in the outcome: its expectation is that with the corrected score as the outcome.
        before, expected = (
            float(np.average(loss.per_row(after, loss.apply_link(scores)), weights=table.weight))
            for scores in (table.prediction, after)
        )
        evaluations = [stopping.Evaluation(before), stopping.Evaluation(expected, before - expected)]
        return History.of(evaluations, 1, reason, EXPECTED, loss.measure)

    def _explain_change(self, table: Table, fitted: Map, after: FloatArray) -> Explanation:
        assert isinstance(fitted, OddsMap)
        note = fitted.describe() if fitted.estimate is None else f"{fitted.describe()}: {fitted.estimate!r}"
        if table.outcome is None:
            return replace(summarise_changes(table, table.prediction, after), note=note)
        return replace(super()._explain_change(table, fitted, after), note=note)

    def _json_parameters(self) -> dict[str, Any]:
        parameters = super()._json_parameters()
        if self.labelled is not None:  # a model file holds no data unless it is asked to
            parameters["labelled"] = f"{len(_read_labelled(self.labelled)[0].y):,} rows"
        return parameters


def _read_labelled(labelled: Any) -> tuple[Scored, IntArray | None]:
    """Return outcomes, scores and weights of labelled rows, and their clusters; raise if there are none."""
    if isinstance(labelled, tuple) and len(labelled) in (2, 3):
        return validate_scores(*labelled), None
    held_out = getattr(labelled, "held_out_", None)
    if held_out is None:
        raise ArgumentError(
            f"labelled must be (y, p), (y, p, weight) or a calibrator with held-out rows; got {type(labelled).__name__}",
            hint="fit the calibrator with stopping=tu.CrossValidation(5), and save it with evidence=True",
            parameter="labelled",
        )
    cluster = getattr(labelled, "held_out_cluster_", None)
    return validate_scores(*held_out), None if cluster is None else np.unique(cluster, return_inverse=True)[1].ravel()
