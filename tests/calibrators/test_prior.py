"""PriorCorrection: Bayes' formula, stated prevalences, label shift, and its files."""

from __future__ import annotations

import json
import os
import random as chance
from pathlib import Path

import numpy as np
import pytest
from scipy import special
from scipy.special import expit, logit

import goldens
import trueup as tu
from checks import rows
from forged import STRANGE, changed, places, refused, store, usable
from trueup import storage
from trueup.errors import ArgumentError, DataError, FileError, ShiftWarning
from trueup.modelfile import KIND, MANIFEST

GOLDEN = Path(__file__).parents[1] / "golden" / "prior"


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def draw(random, n, prevalence, reference=0.1, separation=1.5):
    """Return outcomes, and scores that are calibrated at the reference prevalence: normal given the outcome."""
    y = (random.random(n) < prevalence).astype(float)
    x = random.normal(size=n) + separation * y
    return y, expit(logit(reference) + separation * x - separation**2 / 2)


def test_down_sampling_is_undone_by_bayes_formula():
    p = np.concatenate([np.random.default_rng(0).random(1000), [0.0, 1.0, 1e-300, 1e-9, 1 - 1e-12]])
    for rates in ({"negative": 0.1}, {"positive": 0.5, "negative": 0.003}, {"positive": 0.2}):
        beta, alpha = rates.get("negative", 1.0), rates.get("positive", 1.0)
        fix = tu.PriorCorrection(sampling=rates).fit(p)
        expected = p * beta / (p * beta + (1 - p) * alpha)
        np.testing.assert_allclose(fix.predict(p), expected, rtol=1e-12, atol=0)
        assert fix.offset_ == pytest.approx(np.log(beta / alpha), abs=1e-14)
        assert fix.explain({"x0": 0.3}).link_change == fix.offset_
    # A model of the sampled rows, corrected, is calibrated on all rows: 10 of 100 positives, 50 of 1,000 negatives kept.
    kept = tu.PriorCorrection(sampling={"positive": 0.1, "negative": 0.05}).fit(np.array([10 / 60]))
    assert kept.predict(np.array([10 / 60])) == pytest.approx(100 / 1100, rel=1e-14)


def test_a_stated_prevalence_is_the_weighted_mean():
    random = np.random.default_rng(1)
    p, weight = random.beta(1, 9, 500), random.uniform(0.2, 3, 500)
    for prevalence in (1e-6, 0.03, 0.5, 0.999):
        fix = tu.PriorCorrection(prevalence=prevalence).fit(p, sample_weight=weight)
        after = fix.predict(p)
        assert np.average(after, weights=weight) == pytest.approx(prevalence, rel=1e-12)
        np.testing.assert_allclose(logit(after) - logit(p), fix.offset_, rtol=0, atol=1e-9)
    assert "stated 0.999" in fix.history_.reason
    assert fix.history_.loss_after < fix.history_.loss_before
    with pytest.raises(DataError, match=r"no offset moves the mean score to 0\.5: .* between 0 and 0\.25"):
        tu.PriorCorrection(prevalence=0.5).fit(np.array([0.0, 0.0, 0.0, 0.4]))


def test_the_prevalence_of_maximum_likelihood_is_the_limit_of_em():
    y, p = draw(np.random.default_rng(2), 3000, 0.3)
    t = 0.5
    for _ in range(5000):  # Saerens et al. (2002), equation 2.11
        positive = p * t / 0.1
        t = np.mean(positive / (positive + (1 - p) * (1 - t) / 0.9))
    fix = tu.PriorCorrection(prevalence="estimate", reference_prevalence=0.1).fit(p)
    estimate = fix.estimate_
    assert estimate.estimate == pytest.approx(t, abs=1e-9)

    def likelihood(t):
        return np.sum(np.log(p * t / 0.1 + (1 - p) * (1 - t) / 0.9))

    for end in (estimate.low, estimate.high):  # half the chi-squared quantile 3.8415 below the maximum
        assert likelihood(t) - likelihood(end) == pytest.approx(1.9207, abs=1e-3)
    assert fix.predict(p) == pytest.approx(expit(logit(p) + logit(t) - logit(0.1)), abs=1e-9)
    assert repr(estimate).endswith("of 3,000 rows; 0.1 before; assuming label shift and calibrated scores")
    assert repr(estimate) in repr(fix.explain())
    evaluated = tu.PriorCorrection(prevalence="estimate", reference_prevalence=0.1).fit(p, y)
    assert evaluated.history_.evaluated_on == "training rows"
    assert evaluated.history_.loss_after < evaluated.history_.loss_before


def test_the_corrected_estimate_and_its_interval_agree_with_a_plain_formula():
    random = np.random.default_rng(3)
    known, p_known = draw(random, 300, 0.1)
    p = draw(random, 2000, 0.25)[1]
    p, p_known = expit(1.5 * logit(p)), expit(1.5 * logit(p_known))  # overconfident
    estimate = tu.PriorCorrection(prevalence="estimate", labelled=(known, p_known)).fit(p).estimate_
    r = known.mean()
    grid = np.linspace(0.001, 0.999, 9999)
    a, b = p / r, (1 - p) / (1 - r)
    t = grid[np.argmax([np.sum(np.log(a * t + b * (1 - t))) for t in grid[::10]]) * 10]
    score = [(s / r - (1 - s) / (1 - r)) / (s / r * t + (1 - s) / (1 - r) * (1 - t)) for s in (p, p_known)]
    one, zero = (score[1][known == value] for value in (1, 0))
    assert estimate.estimate == pytest.approx((score[0].mean() - zero.mean()) / (one.mean() - zero.mean()), abs=2e-3)
    mixture = grid * one.mean() + (1 - grid) * zero.mean()
    variance = (grid * (one**2).mean() + (1 - grid) * (zero**2).mean() - mixture**2) / len(p)
    variance += grid**2 * one.var(ddof=1) / len(one) + (1 - grid) ** 2 * zero.var(ddof=1) / len(zero)
    quantile = special.stdtrit(len(one) - 1, 0.975)  # 2.04 for 30 positives
    inside = grid[(score[0].mean() - mixture) ** 2 <= quantile**2 * variance]
    assert [estimate.low, estimate.high] == pytest.approx([inside.min(), inside.max()], abs=2e-3)
    assert estimate.low < 0.25 < estimate.high  # the uncorrected estimate is wrong
    plain = tu.PriorCorrection(prevalence="estimate", reference_prevalence=r).fit(p).estimate_
    assert plain.high < 0.25


@pytest.mark.repeated(60, 500)
def test_the_interval_of_the_prevalence_covers(repetitions):
    random, missed = np.random.default_rng(4), [0, 0]
    for _ in range(repetitions):
        known, p = draw(random, 1000, 0.1), draw(random, 1000, 0.2)[1]
        for place, evidence in enumerate(({"reference_prevalence": 0.1}, {"labelled": known})):
            estimate = tu.PriorCorrection(prevalence="estimate", **evidence).fit(p).estimate_
            missed[place] += not estimate.low <= 0.2 <= estimate.high
    limit = 0.05 * repetitions + 2 * np.sqrt(repetitions * 0.05 * 0.95)
    assert max(missed) <= limit


def test_clusters_and_weights_widen_the_interval():
    random = np.random.default_rng(5)
    known, p = draw(random, 2000, 0.1), draw(random, 500, 0.2)[1]
    fix = tu.PriorCorrection(prevalence="estimate", labelled=known)
    alone, cloned = fix.fit(p).estimate_, fix.fit(np.repeat(p, 4), cluster=np.repeat(np.arange(500), 4)).estimate_
    assert (cloned.low, cloned.high) == pytest.approx((alone.low, alone.high), abs=1e-9)
    narrow = fix.fit(np.repeat(p, 4)).estimate_
    assert narrow.high - narrow.low < 0.8 * (alone.high - alone.low)
    weighted = fix.fit(p, sample_weight=np.where(np.arange(500) % 5, 1.0, 30.0)).estimate_
    assert weighted.high - weighted.low > 1.4 * (alone.high - alone.low)


def test_estimates_are_refused_where_scores_cannot_tell():
    random = np.random.default_rng(6)
    weak = [draw(random, 400, t, separation=0.2) for t in (0.1, 0.2)]
    for evidence in ({"reference_prevalence": 0.1}, {"labelled": weak[0]}):
        with pytest.raises(
            DataError, match=r"cannot tell their prevalence: at the reference of 0.*standard error would be"
        ):
            tu.PriorCorrection(prevalence="estimate", **evidence).fit(weak[1][1])
    with pytest.raises(DataError, match="cannot tell"):
        tu.PriorCorrection(prevalence="estimate", reference_prevalence=0.1).fit(np.full(500, 0.1))
    with pytest.raises(DataError, match="no prevalence between 0 and 1 explains"):
        tu.PriorCorrection(prevalence="estimate", labelled=draw(random, 5000, 0.5, 0.5)).fit(np.full(500, 1e-4))
    p = draw(random, 1000, 0.0)[1]
    with pytest.raises(DataError, match="4 positive outcomes, too few"):
        tu.PriorCorrection(prevalence="estimate", labelled=(np.arange(1000) < 4, p)).fit(p)


def test_scores_that_are_no_mixture_are_reported():
    random = np.random.default_rng(7)
    known, p = draw(random, 3000, 0.1), draw(random, 3000, 0.2)[1]
    with pytest.warns(ShiftWarning, match="not a mixture of those of labelled positives and negatives"):
        tu.PriorCorrection(prevalence="estimate", labelled=known).fit(expit(0.5 * logit(p) + random.normal(size=3000)))


def test_parameters_that_do_not_belong_together_are_rejected():
    p = np.linspace(0.1, 0.9, 50)
    for parameters, message in (
        ({}, "pass either sampling or prevalence; got neither"),
        ({"sampling": {"positve": 0.1}, "prevalence": None}, "sampling must map positive, negative or both"),
        ({"sampling": {"negative": 0}}, r"sampling\['negative'\] must"),
        ({"prevalence": "estimate"}, 'prevalence="estimate" needs either labelled or reference_prevalence; got neither'),
        ({"prevalence": 0.1, "reference_prevalence": 0.2}, 'reference_prevalence is for prevalence="estimate"'),
        ({"prevalence": "estimate", "labelled": 3}, r"labelled must be \(y, p\).* got int"),
        ({"prevalence": "estimate", "labelled": tu.Platt()}, "got Platt"),
        ({"prevalence": "estimate", "reference_prevalence": 0.1, "level": 95}, "level must lie between 0 and 1"),
        ({"prevalence": 0.1, "task": "regression"}, "corrects probabilities"),
    ):
        with pytest.raises(ArgumentError, match=message):
            tu.PriorCorrection(**parameters).fit(p)
    with pytest.raises(DataError, match="every labelled outcome is 0"):
        tu.PriorCorrection(prevalence="estimate", labelled=(np.zeros(50), p)).fit(p)


# ------------------------------------------------------------------ files


def fitted():
    random = np.random.default_rng(8)
    known, data = draw(random, 1000, 0.1), rows("binary", 300)
    data["p"] = draw(random, 300, 0.3)[1]
    return tu.PriorCorrection("p", prevalence="estimate", labelled=known).fit(data), data


def make_golden():
    """Write the golden file of the present format."""
    fix, data = fitted()
    goldens.write(GOLDEN, "prior", fix, {name: data[name][:25] for name in ("p", "country", "age", "new", "day")})


def test_the_golden_file_scores_as_when_written():
    paths = sorted(GOLDEN.glob("*.trueup"))
    assert {path.stem for path in paths} == goldens.names(["prior"])
    for path in paths:
        golden = goldens.read(path)
        np.testing.assert_allclose(tu.load(path).predict(golden["rows"]), golden["expected"], rtol=1e-12)


def test_estimates_are_saved_without_the_labelled_rows(tmp_path):
    fix, data = fitted()
    tu.save(fix, tmp_path / "model")
    model = tu.load(tmp_path / "model")
    assert model.map.estimate == fix.estimate_
    assert model.explain() == fix.explain()
    assert model.about.parameters["labelled"] == "1,000 rows"
    assert (model.predict(data) == fix.predict(data)).all()
    assert model.info().shrunken_gain is None


def test_changed_fields_of_the_file_are_rejected_or_harmless(tmp_path):
    fix, data = fitted()
    tu.save(fix, tmp_path / "model")
    parts = storage.read(tmp_path / "model", kind=KIND)
    manifest, few = json.loads(parts[MANIFEST]), {name: column[:3] for name, column in data.items()}
    draws, rejected = chance.Random(0), 0
    for place in places(manifest["map"], ("map",)):
        for value in draws.sample(STRANGE, 6):
            store(tmp_path / "forged", {MANIFEST: json.dumps(changed(manifest, place, value)).encode()})
            try:
                usable(tu.load(tmp_path / "forged"), few)
            except FileError:
                rejected += 1
    assert rejected > 30
    for place, value, message in (
        (("map", "factor"), 0.0, "the factor is invalid"),
        (("map", "estimate", "low"), 0.99, "the prevalence is invalid"),
        (("map", "estimate", "p_value"), 2.0, "the prevalence is invalid"),
    ):
        store(tmp_path / "forged", {MANIFEST: json.dumps(changed(manifest, place, value)).encode()})
        refused(tmp_path / "forged", message)
    store(tmp_path / "forged", parts | {"more": b""})
    refused(tmp_path / "forged", "arrays that the manifest does not list")
