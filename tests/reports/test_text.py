"""Sentences of a page: summary, next steps and detectable errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from trueup.audits.result import Source
from trueup.reports.compare import compared_sentences, compared_step
from trueup.reports.page import render
from trueup.reports.profiles import Vocabulary
from trueup.reports.text import count_text, detectable_shifts, next_step, summarize


def make_rows(seed: int, *, factor: float = 1.0, n: int = 12_000):
    """Make rows whose small segment b=True has rates off by a factor, and all others by 10% unless the factor is 1."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.1, 0.4, n)
    b = (rng.random(n) < 0.03).astype(str)
    rate = np.where(b == "True", np.minimum(p * factor, 1.0), p * (1.0 + 0.1 * (factor > 1)))
    return {"b": b, "c": rng.integers(0, 3, n).astype(str), "p": p, "y": (rng.random(n) < rate) * 1}


def audit_rows(data):
    return tu.audit(data, outcome="y", prediction="p", by=["b", "c"])


@pytest.fixture(scope="module")
def miscalibrated():
    return audit_rows(make_rows(0, factor=1.5))


@pytest.fixture(scope="module")
def calibrated():
    return audit_rows(make_rows(0))


@pytest.fixture(scope="module")
def fixed(miscalibrated):
    """Return an audit of the rows of `miscalibrated` that finds nothing."""
    return replace(miscalibrated, columns=miscalibrated.columns | {"p_adjusted": np.ones(len(miscalibrated))})


def test_summary_names_the_strongest_evidence_and_the_largest_error(miscalibrated):
    text = summarize(miscalibrated)
    strongest = miscalibrated.worst(1)[0]
    largest = max(miscalibrated.worst(miscalibrated.rejected), key=lambda finding: abs(finding.bias))
    assert strongest.segment != largest.segment
    assert f"strongest on {strongest.segment}: observed/expected {strongest.ratio:.2f}." in text
    assert f"largest difference among them is on {largest.segment} ({largest.n:,} rows): observed 0." in text


def test_summary_without_findings_names_no_largest_error(calibrated):
    text = summarize(calibrated)
    assert text.startswith(
        f"0 of {calibrated.tested} segments are miscalibrated at 5% (Holm). The evidence is strongest on "
    )
    assert text.endswith(", within sampling noise.")
    assert "largest" not in text


def test_summary_of_one_finding_is_singular(calibrated):
    p_adjusted = np.append(0.01, calibrated.columns["p_adjusted"][1:])
    single = replace(calibrated, columns=calibrated.columns | {"p_adjusted": p_adjusted})
    assert summarize(single).startswith(f"1 of {calibrated.tested} segments is miscalibrated at")
    assert "largest" not in summarize(single)  # it is the one with the strongest evidence


def test_a_fix_that_works_is_recommended(miscalibrated, fixed):
    def text(name):
        return compared_step({"raw": miscalibrated, name: fixed}).text

    assert text("fixed").startswith("Next: use fixed, provided that these rows were not used for the fit")
    assert text("after MCGrad").startswith("Next: use the scores after MCGrad, provided")
    assert text("after").startswith("Next: use the corrected scores, provided")


def test_a_fix_that_makes_things_worse_is_not_recommended(miscalibrated, fixed):
    text = compared_step({"raw": fixed, "fixed": miscalibrated}).text
    count = miscalibrated.rejected
    assert text == f"Next: do not use fixed yet. {count} segments are miscalibrated, compared with 0 before."


def test_remaining_miscalibrated_segments_are_counted(miscalibrated):
    text = compared_step({"raw": miscalibrated, "fixed": miscalibrated}).text
    assert f"{miscalibrated.rejected} segments are still miscalibrated" in text


def test_two_calibrated_scores_need_no_correction(calibrated):
    assert "no correction is needed" in compared_step({"raw": calibrated, "fixed": calibrated}).text


def test_comparison_of_different_rows_is_announced(miscalibrated):
    other = audit_rows(make_rows(1, factor=1.5))
    pair = {"March": miscalibrated, "April": other}
    assert compared_sentences(pair, Vocabulary())[1].startswith("These audits are of different rows")
    assert compared_step(pair).text.startswith("Next: fit a correction")
    assert "different rows" not in render([miscalibrated, miscalibrated])


def test_the_command_of_the_source_is_shown_as_it_is(miscalibrated):
    command = "trueup fit --sql \"FROM 'a.parquet'\" --outcome y --prediction p -o model.trueup"
    assert next_step(replace(miscalibrated, source=Source((), "trueup audit", command))).code == command


def test_without_a_command_the_next_step_is_python_that_runs(miscalibrated):
    code = next_step(miscalibrated).code
    assert code == 'trueup.MCGrad("p", ["b", "c"]).fit(rows, rows["y"])'
    rows = make_rows(0, factor=1.5, n=3_000)
    fitted = eval(code, {"trueup": tu, "rows": rows})
    assert fitted.predict(rows).shape == (3_000,)


def test_python_code_has_weights_several_predictions_and_regression():
    rng = np.random.default_rng(0)
    p, n = rng.dirichlet([2, 2], 2_000), 2_000
    rows = {"p": p[:, 0], "q": p[:, 1], "w": rng.uniform(1, 2, n), "g": rng.choice(["u", "v"], n)}
    classes = {**rows, "y": np.where(rng.random(n) < p[:, 0] ** 2, "p", "q")}
    audit = tu.audit(classes, outcome="y", prediction=["p", "q"], weight="w", by=["g"])
    assert next_step(audit).code == 'trueup.MCGrad(["p", "q"], ["g"]).fit(rows, rows["y"], sample_weight=rows["w"])'
    amounts = {**rows, "y": 3 * p[:, 0]}
    audit = tu.audit(amounts, outcome="y", prediction="p", by=["g"], task="regression")
    assert next_step(audit).code == 'trueup.MCGrad("p", ["g"], task="regression").fit(rows, rows["y"])'


def test_with_many_features_the_outcome_is_passed_by_name(miscalibrated):
    features = tuple(replace(miscalibrated.schema.features[0], name=f"f{k}") for k in range(9))
    many = replace(miscalibrated, schema=replace(miscalibrated.schema, features=features))
    assert next_step(many).code == 'trueup.MCGrad("p").fit(rows, "y")'


def test_sentences_use_the_vocabulary(miscalibrated, calibrated):
    vocabulary = Vocabulary(
        observed="event rate", expected="predicted rate", segment="group", segments="groups", rows="patients"
    )
    text = summarize(miscalibrated, vocabulary)
    assert text.startswith(f"{miscalibrated.rejected} of {miscalibrated.tested} groups are miscalibrated")
    assert " patients): event rate 0." in text
    assert ", predicted rate 0." in text
    step = compared_step({"raw": miscalibrated, "fixed": miscalibrated}, vocabulary)
    assert "segment" not in text + step.text + " ".join(detectable_shifts(calibrated, vocabulary))


@pytest.mark.parametrize(
    ("names", "headline"),
    [
        (("before", "after"), "{} segments miscalibrated before, 0 after"),
        (("before", "after MCGrad"), "{} segments miscalibrated before, 0 after MCGrad"),
        (("pctr", "pctr_trueup"), "{} segments miscalibrated with pctr, 0 with pctr_trueup"),
        (("afterpay", "beforehand"), "{} segments miscalibrated with afterpay, 0 with beforehand"),
    ],
)
def test_headline_of_a_comparison_fits_the_names(miscalibrated, fixed, names, headline):
    pair = dict(zip(names, (miscalibrated, fixed), strict=True))
    assert compared_sentences(pair, Vocabulary())[0] == headline.format(miscalibrated.rejected)


def test_impossible_shifts_of_a_rate_are_not_called_detectable():
    audit = tu.audit({"y": [1, 0], "p": [0.3, 0.4], "g": ["a", "b"]}, outcome="y", prediction="p", min_rows=1)
    assert audit.overall.mde > 1
    lines = detectable_shifts(audit)
    assert [line for line in lines if "percentage points" in line] == []
    assert lines[0].startswith("Over all rows, no shift")
    assert lines[1].endswith("no shift would have been detected with 80% power.")
    assert lines[2].endswith("no shift, however large, would have been detected.")
    text = next_step(audit).text
    assert text.startswith("Next: collect more rows before relying on this result. Any error in a mean of 0.50 could")
    assert "a shift of" not in render(audit)


def test_too_few_rows_of_a_continuous_outcome_are_announced():
    amounts = {"y": np.arange(9) + 0.5, "p": np.arange(9.0), "g": list("aaabbbccc")}
    audit = tu.audit(amounts, outcome="y", prediction="p", task="regression", min_rows=1)
    assert audit.tested == 0
    assert summarize(audit) == "No segment has 10 rows."
    assert next_step(audit).text.endswith("needs at least 10 to be tested.")


def test_counts_are_integers_up_to_rounding():
    assert [count_text(value) for value in (1234.0, 0.1 * 3 * 10, 12.34, float("nan"))] == ["1,234", "3", "12.3", "-"]
