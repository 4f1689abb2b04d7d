"""Sentences of a page: headline, sizes, next steps and detectable errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from trueup.audits.settings import Source
from trueup.audits.text import certain_size, format_share, largest_certain_error, percent_off, signed_count
from trueup.reports.compare import compared_sentences, compared_step, worse_segments
from trueup.reports.page import render
from trueup.reports.profiles import Vocabulary
from trueup.reports.summary import headline, key_figures, lead, next_step, problem_table, tolerance_text
from trueup.reports.text import count_text, detectable_shifts


def make_rows(seed: int, *, factor: float = 1.0, n: int = 12_000):
    """Make rows whose small segment b=True has rates off by a factor, and all others by 10% unless the factor is 1."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.1, 0.4, n)
    b = (rng.random(n) < 0.03).astype(str)
    rate = np.where(b == "True", np.minimum(p * factor, 1.0), p * (1.0 + 0.1 * (factor > 1)))
    return {"b": b, "c": rng.integers(0, 3, n).astype(str), "p": p, "y": (rng.random(n) < rate) * 1}


def audit_rows(data, **settings):
    return tu.audit(data, outcome="y", prediction="p", by=["b", "c"], **settings)


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


def test_the_largest_certain_error_is_the_end_of_an_interval_closest_to_1(miscalibrated):
    frame = miscalibrated.to_frame()
    found = frame["p_adjusted"] <= 0.05
    low, high = frame["ratio_low_adjusted"][found], frame["ratio_high_adjusted"][found]
    sizes = np.maximum(np.maximum(low, 1 / high), 1)
    size, name = largest_certain_error(miscalibrated)
    assert (size, name) == (percent_off(sizes.max()), frame["segment"][found][np.argmax(sizes)])
    assert headline(miscalibrated) == f"Miscalibrated: some errors are at least {size}"
    assert f", some by {size} or more; " in miscalibrated.verdict


def test_verdict_page_and_figures_name_the_same_largest_problem(miscalibrated):
    largest = miscalibrated.problems[0].finding
    assert f"; largest problem {largest.segment}: " in miscalibrated.verdict
    count, sentence = lead(miscalibrated)
    problems = len(miscalibrated.problems)
    assert count == (
        f"{miscalibrated.rejected} of {miscalibrated.tested} segments are miscalibrated at 5% (Holm): "
        f"{problems} distinct problem{'s' * (problems > 1)}."
    )
    size, excess = percent_off(certain_size(largest)), f"{largest.excess:.0f} more events than expected"
    assert sentence == (
        f"Largest problem: {largest.segment}, {excess} in {format_share(largest.share)} of rows: "
        f"at least {size} more events than predicted."
    )
    assert problem_table(miscalibrated, Vocabulary()).rows[0][0].text == largest.segment
    assert miscalibrated.shown(1)[0].segment == largest.segment
    assert next_step(miscalibrated).steps[0] == (
        'Decide how large an error matters, and audit again with it, for example tolerance="10%".'
    )


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.358, "35%"), (0.8, "25%"), (1.0249, "2.4%"), (3.456, "245%"), (1.0, "0%"), (0.0, "-"), (1.00012345, "0.012%")],
)
def test_a_certain_error_is_rounded_towards_zero(ratio, text):
    assert percent_off(ratio) == text


def test_scores_that_are_too_high_are_described_as_such():
    data = make_rows(0, n=6_000)
    audit = audit_rows({**data, "p": 2 * data["p"]}, tolerance="50%")
    largest = audit.problems[0].finding
    assert largest.ratio_high_adjusted < 1 / 1.5
    sentence = lead(audit, Vocabulary(score="PD"))[-1]
    excess = f"{-largest.excess:,.0f} fewer events than expected"
    assert sentence.startswith(f"Largest problem: {largest.segment}, {excess} in ")
    assert sentence.endswith(f" of rows: PDs at least {percent_off(largest.ratio_high_adjusted)} too high.")


def test_errors_beyond_the_tolerance_are_material(miscalibrated):
    audit = audit_rows(make_rows(0, factor=1.5), tolerance="5%")
    assert headline(audit) == "Material: miscalibrated by more than 5%"
    material = sum(problem.finding.state == "material" for problem in audit.problems)
    assert f", {material} of them certainly beyond 5%." in lead(audit)[0]
    assert next_step(audit).steps[0] == "Do not rely on the scores in these segments until they are corrected."
    states = [row[1].text for row in problem_table(audit, Vocabulary()).rows]
    assert states == [problem.finding.state for problem in audit.problems[:3]]
    assert [column.text for column in problem_table(miscalibrated, Vocabulary()).columns][1] == "rows"  # no states


def test_errors_that_could_exceed_the_tolerance_are_distinguished():
    data = make_rows(0, factor=1.3)
    unsure = audit_rows(data, tolerance="12%")
    states = [problem.finding.state for problem in unsure.problems]
    assert unsure.state == states[0] == "possibly material"
    assert headline(unsure) == "Possibly material: some errors may exceed 12%"
    assert f", {states.count('possibly material')} of them possibly beyond 12%." in lead(unsure)[0]
    assert lead(unsure)[1] == "None of these segments is certainly off by more than 12%."
    assert next_step(unsure).steps[0] == "Collect more rows to learn whether errors exceed 12%."
    sure = audit_rows(data, tolerance=0.4)
    assert headline(sure) == "Miscalibrated, within the tolerance of 40 percentage points"
    assert "The mean error of each of these segments is certainly within 40 percentage points." in lead(sure)
    assert next_step(sure).steps[0] == "No correction is required for mean errors of up to 40 percentage points."
    assert next_step(sure).code == ""


@pytest.mark.parametrize("tolerance", ["5%", "12%", "20%", "30%", "40%", "60%", 0.02, 0.05, 0.2])
@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_what_is_certain_is_true_of_every_segment_that_a_sentence_speaks_of(tolerance, factor):
    data = make_rows(0, factor=1.3)
    audit = audit_rows({**data, "p": data["p"] * (1 if factor > 1 else 1.5)}, tolerance=tolerance)
    low, high = audit.settings.tolerance.limits(audit.columns["expected"])
    ends = np.sort([audit.columns["expected"] * audit.derived[f"ratio_{end}_adjusted"] for end in ("low", "high")], axis=0)
    found = audit.columns["p_adjusted"] <= 0.05
    inside, state = (low <= ends[0]) & (ends[1] <= high), audit.derived["state"]
    by_mean = (ends[0] > high) | (ends[1] < low)
    assert inside[state == "within tolerance"].all()
    assert set(state[found & by_mean]) <= {"material"}
    estimate = audit.columns["observed"]
    assert not ((state == "within tolerance") & ((estimate < low) | (estimate > high))).any()
    counts = {name: int((state == name).sum()) for name in ("material", "possibly material", "within tolerance")}
    assert sum(counts.values()) == audit.rejected > 0
    text = f"{audit.verdict} {headline(audit)} {' '.join(lead(audit))}"
    assert ("mean of each certainly within" in text) == ("The mean error of each" in text) == inside[found].all()
    assert ("none certainly beyond" in text) == (not counts["material"] and not inside[found].all())
    if counts["material"]:
        assert f"{counts['material']} of {audit.tested} segments certainly beyond" in audit.verdict
        assert (f"{counts['possibly material']} possibly" in audit.verdict) == (counts["possibly material"] > 0)
        assert (f"{counts['within tolerance']} within;" in audit.verdict) == (counts["within tolerance"] > 0)


def test_errors_within_the_tolerance_on_average_may_be_larger_at_some_scores():
    rng = np.random.default_rng(3)
    p = rng.uniform(0.1, 0.9, 20_000)
    data = {"p": p, "y": rng.random(20_000) < 0.5 + 0.6 * (p - 0.5)}
    audit = tu.audit(data, outcome="y", prediction="p", tolerance="20%")
    assert audit.state == "within tolerance"
    assert lead(audit)[1:3] == [
        "Its mean error is certainly within 20%.",
        "Errors at some scores in all rows may be larger.",
    ]
    assert next_step(audit).steps[1] == "Look at the curve of all rows: errors at some scores may be larger."


def test_an_error_at_a_few_scores_is_named_where_the_mean_is_within_the_tolerance():
    rng = np.random.default_rng(5)
    p = rng.uniform(0.1, 0.5, 100_000)
    data = {"p": p, "y": rng.random(100_000) < np.where(p < 0.18, 1.3 * p, p)}
    audit = tu.audit(data, outcome="y", prediction="p", tolerance="10%")
    assert audit.state == "within tolerance"
    assert ", with scores too low below 0.20 (" in audit.verdict
    assert "Errors at some scores in all rows may be larger." in lead(audit)
    assert next_step(audit).steps[1].startswith("Look at the curve of all rows")
    assert problem_table(audit, Vocabulary()).rows[0][0].detail.startswith("Scores too low below 0.20 (")


def test_an_absolute_tolerance_of_a_probability_is_in_percentage_points(calibrated):
    assert tolerance_text(audit_rows(make_rows(0), tolerance=0.01)) == "1 percentage point"
    amounts = audit_rows(make_rows(0), task="regression", tolerance=0.5)
    assert tolerance_text(amounts) == "0.5"


def test_without_findings_no_segment_is_named(calibrated):
    assert headline(calibrated) == "No miscalibration found"
    none, detectable = lead(calibrated)
    assert none == f"None of the {calibrated.tested} segments tested at 5% (Holm) shows more than noise."
    assert detectable.endswith("percentage points over all rows would have been found with 80% power.")
    names = [figure.name for figure in key_figures(calibrated, Vocabulary())]
    assert names == ["rows", "segments tested", "observed/expected, all rows"]
    assert problem_table(calibrated, Vocabulary()).rows == ()
    text = render(calibrated).partition('id="whole"')[0]
    assert not any(segment in text for segment in calibrated._names if segment != "all rows")


def test_one_finding_is_singular(calibrated):
    p_adjusted = np.append(0.01, calibrated.columns["p_adjusted"][1:])
    single = replace(calibrated, columns=calibrated.columns | {"p_adjusted": p_adjusted})
    assert lead(single)[0].startswith(f"1 of {calibrated.tested} segments is miscalibrated at")


def test_key_figures_are_those_of_the_largest_problem_and_of_all_rows(miscalibrated):
    problems, excess, certain, overall = key_figures(miscalibrated, Vocabulary())
    assert (problems.value, problems.detail) == (
        str(len(miscalibrated.problems)), f"{miscalibrated.rejected} of {miscalibrated.tested} segments",
    )  # fmt: skip
    largest = miscalibrated.problems[0].finding
    assert excess.name == "largest problem: excess of events"
    place = f"{format_share(largest.share)} of rows: {largest.segment}" if largest.depth else largest.segment
    assert (excess.value, excess.detail) == (signed_count(largest.excess), place)
    assert (certain.name, certain.value, certain.detail) == ("largest certain error", *largest_certain_error(miscalibrated))
    assert float(overall.value) == pytest.approx(miscalibrated.overall.ratio, rel=0.01)
    assert overall.detail.endswith(f"; {signed_count(miscalibrated.overall.excess)} events")


def test_a_fix_that_works_is_recommended(miscalibrated, fixed):
    def text(name):
        return compared_step({"raw": miscalibrated, name: fixed}).steps[0]

    assert text("fixed").startswith("Use fixed, provided that these rows were not used for the fit")
    assert text("after MCGrad").startswith("Use the scores after MCGrad, provided")
    assert text("after").startswith("Use the corrected scores, provided")


def test_a_fix_that_makes_a_segment_worse_is_not_recommended():
    data = make_rows(0, factor=1.5)
    before = audit_rows(data)
    worse = audit_rows({**data, "p": np.where(data["c"] == "2", 0.7 * data["p"], 1.1 * data["p"])})
    pairs = worse_segments(before, worse)
    assert worse.keys.name(pairs[0][1]) == "c=2"
    steps = compared_step({"before": before, "after": worse}).steps
    assert steps[0].startswith("Do not use the corrected scores yet:")
    first, now = before["c=2"], worse["c=2"]
    assert steps[1] == (
        f"{len(pairs)} segments have become worse, most in c=2: observed/expected {first.ratio:.2f} before, "
        f"{now.ratio:.2f} now."
    )
    page = render([before, worse])
    assert "have become worse, most in c=2" in page


def test_a_segment_that_becomes_worse_within_the_tolerance_is_stated_and_the_scores_may_be_used():
    data = make_rows(0, factor=1.5, n=40_000)
    p, limit = np.where(data["c"] == "2", 0.85 * data["p"], data["p"]), "what remains is not certainly beyond 60%."
    for tolerance in ("60%", "200%"):
        before, worse = audit_rows(data, tolerance=tolerance), audit_rows({**data, "p": p}, tolerance=tolerance)
        use, warning, _ = compared_step({"before": before, "after": worse}).steps
        assert use.startswith("Use the corrected scores, provided")
        assert use.endswith(limit)
        limit = "what remains is certainly within 200% on average."
    assert "have become worse, most in c=2" in warning


def test_more_findings_than_before_are_not_recommended(miscalibrated, fixed):
    steps = compared_step({"raw": fixed, "fixed": miscalibrated}).steps
    assert steps[0] == f"Do not use fixed yet: {miscalibrated.rejected} segments miscalibrated, 0 before."


def test_remaining_miscalibrated_segments_are_counted(miscalibrated):
    steps = compared_step({"raw": miscalibrated, "fixed": miscalibrated}).steps
    assert f"{miscalibrated.rejected} segments are still miscalibrated" in steps[0]


def test_two_calibrated_scores_need_no_correction(calibrated):
    assert "No correction is needed." in compared_step({"raw": calibrated, "fixed": calibrated}).steps


def test_comparison_of_different_rows_is_announced(miscalibrated):
    other = audit_rows(make_rows(1, factor=1.5))
    pair = {"March": miscalibrated, "April": other}
    assert compared_sentences(pair, Vocabulary())[1].startswith("These audits are of different rows")
    assert compared_step(pair) == next_step(other)
    assert "different rows" not in render([miscalibrated, miscalibrated])


def test_the_command_of_the_source_is_shown_as_it_is(miscalibrated):
    command = "trueup fit --sql \"FROM 'a.parquet'\" --outcome y --prediction p -o model.trueup"
    step = next_step(replace(miscalibrated, source=Source((), "trueup audit", command)))
    assert step.code == command
    assert step.steps[0].endswith("for example --tolerance 10%.")


def test_without_a_command_the_next_step_is_python_that_runs(miscalibrated):
    code = next_step(miscalibrated).code
    assert code == 'trueup.MCGrad("p", ["b", "c"], categorical=["c"]).fit(rows, rows["y"])'
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


def test_python_code_lists_all_columns_and_the_cluster_and_runs():
    rows = make_rows(0, factor=3, n=4_000)
    rows |= {f"f{k}": np.random.default_rng(k).choice(["u", "v"], 4_000) for k in range(9)}
    rows["customer"] = np.repeat(np.arange(2_000), 2)
    columns = ["b", *(f"f{k}" for k in range(9))]
    audit = tu.audit(rows, outcome="y", prediction="p", by=columns, cluster="customer")
    code = next_step(audit).code
    assert code.endswith('"f7", "f8"]).fit(rows, rows["y"], cluster="customer")')
    fitted = eval(code, {"trueup": tu, "rows": rows})
    assert [feature.name for feature in fitted.model_.schema.features] == columns


def test_sentences_use_the_vocabulary(miscalibrated, calibrated):
    vocabulary = Vocabulary(
        outcomes="deaths",
        observed="event rate",
        expected="predicted rate",
        segment="group",
        segments="groups",
        rows="patients",
    )
    text = " ".join(lead(miscalibrated, vocabulary))
    assert text.startswith(f"{miscalibrated.rejected} of {miscalibrated.tested} groups are miscalibrated")
    assert "more deaths than predicted" in text
    steps = compared_step({"raw": miscalibrated, "fixed": miscalibrated}, vocabulary).steps
    assert "segment" not in " ".join([text, *steps, *detectable_shifts(calibrated, vocabulary)])
    assert [column.text for column in problem_table(miscalibrated, vocabulary).columns][1:5] == [
        "patients", "event rate", "predicted rate", "excess deaths",
    ]  # fmt: skip


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


def test_headline_of_a_comparison_counts_material_segments(calibrated):
    data = make_rows(0, factor=1.5)
    before, after = audit_rows(data, tolerance="5%"), audit_rows({**data, "p": 1.1 * data["p"]}, tolerance="5%")
    material = [int((audit.to_frame()["state"] == "material").sum()) for audit in (before, after)]
    text = f"{material[0]} segments materially miscalibrated before, {material[1]} after"
    assert compared_sentences({"before": before, "after": after}, Vocabulary())[0] == text


def test_impossible_shifts_of_a_rate_are_not_called_detectable():
    audit = tu.audit({"y": [1, 0], "p": [0.3, 0.4], "g": ["a", "b"]}, outcome="y", prediction="p", min_rows=1)
    assert audit.overall.mde > 1
    lines = detectable_shifts(audit)
    assert [line for line in lines if "percentage points" in line] == []
    assert lines[0].startswith("Over all rows, no shift")
    assert lines[1].endswith("no shift would have been detected with 80% power.")
    assert lines[2].endswith("no shift, however large, would have been detected.")
    (text,) = next_step(audit).steps
    assert text.startswith("Collect more rows before relying on this result. Any error in a mean of 0.50 could")
    assert len(lead(audit)) == 1
    assert "a shift of" not in render(audit)


def test_too_few_rows_of_a_continuous_outcome_are_announced():
    amounts = {"y": np.arange(9) + 0.5, "p": np.arange(9.0), "g": list("aaabbbccc")}
    audit = tu.audit(amounts, outcome="y", prediction="p", task="regression", min_rows=1)
    assert audit.tested == 0
    assert (headline(audit), lead(audit)) == ("Not testable", ["No segment has 10 rows."])
    assert next_step(audit).steps[0].endswith("needs at least 10 to be tested.")


def test_ratios_of_negative_means_are_not_described():
    rng = np.random.default_rng(1)
    p = rng.normal(-50, 2, 3000)
    data = {"g": rng.choice(["a", "b"], 3000), "y": p + rng.normal(0.5, 1, 3000), "p": p}
    audit = tu.audit(data, outcome="y", prediction="p", task="regression")
    assert headline(audit) == "Miscalibrated"
    assert lead(audit)[1] == f"Largest problem: all rows, {audit.overall.excess:,.0f} more than expected in 100% of rows."
    assert "O/E" not in render(audit)
    assert [row[6].ratio for row in problem_table(audit, Vocabulary()).rows] == [None]


def test_a_cross_fit_and_dropped_combinations_qualify_the_verdict(calibrated):
    sentences = lead(replace(calibrated, cross_fitted=True, dropped=("a x b",)))
    assert sentences[-2:] == [
        "1 combination of columns was not tested.",
        "This audit is nearly blind: the scores are held-out predictions of a cross-fit.",
    ]


def test_counts_are_integers_up_to_rounding():
    assert [count_text(value) for value in (1234.0, 0.1 * 3 * 10, 12.34, float("nan"))] == ["1,234", "3", "12.3", "-"]


def test_a_segment_whose_mean_improves_is_called_worse_by_its_errors_at_single_scores():
    data = make_rows(0, n=20_000)
    inside = data["c"] == "2"
    before = audit_rows({**data, "p": data["p"] + np.where(inside, 0.012, 0.0)})
    after = audit_rows({**data, "p": np.where(inside, 0.25 + 1.6 * (data["p"] - 0.25), data["p"])})  # overconfident
    first, now = before["c=2"], after["c=2"]
    assert abs(now.bias) < abs(first.bias)
    assert now.ecce > 1.1 * first.ecce
    warning = compared_step({"before": before, "after": after}).steps[1]
    assert "most in c=2: errors that vary with the score have grown" in warning
    assert f"(ecce {first.ecce:.2g} before, {now.ecce:.2g} now)" in warning
    assert "observed/expected" not in warning


@pytest.mark.parametrize(("factor", "word"), [(0.8, "excess"), (1.25, "shortfall")])
def test_the_largest_excess_is_called_a_shortfall_if_there_are_fewer_events_than_expected(factor, word):
    data = make_rows(0)
    figures = key_figures(audit_rows({**data, "p": factor * data["p"]}), Vocabulary())
    assert figures[1].name == f"largest problem: {word} of events"
    assert figures[1].value.startswith("+" if word == "excess" else "-")


def test_errors_of_the_largest_problem_that_cancel_are_counted_by_score():
    p = np.repeat([0.2, 0.8], 1000)
    y = np.r_[np.arange(1000) < 400, np.arange(1000) < 580].astype(int)  # 200 more and 220 fewer than expected
    figure = key_figures(tu.audit({"p": p, "y": y}, outcome="y", prediction="p"), Vocabulary())[1]
    assert (figure.name, figure.value) == ("largest problem: excess of events, by score", "+200, -220")


def test_a_large_segment_that_could_not_be_tested_is_named_and_not_green():
    rng = np.random.default_rng(3)
    g, p = np.repeat([*"abcde"], 800), rng.lognormal(0, 0.6, 4000)
    y = np.where(g == "a", 0.0, p * rng.gamma(4, 0.25, 4000))
    audit = tu.audit({"g": g, "p": p, "y": y}, outcome="y", prediction="p", task="regression")
    assert headline(audit) == "No miscalibration found where it could be tested"
    assert lead(audit)[-1] == f"Not tested: g=a, {p[:800].sum():,.0f} fewer than expected in 20% of rows."
    assert next_step(audit).steps == (
        "Do not rely on the scores in g=a, which could not be tested.",
        "Collect more rows of it, or audit with the family tweedie, for amounts with zeros.",
    )
    assert '<div class="verdict untested" id="verdict">' in render(audit)


def test_an_error_that_is_material_at_some_scores_only_has_no_smaller_certain_size():
    rng = np.random.default_rng(3)
    p = rng.uniform(0.1, 0.9, 20_000)
    data = {"p": p, "y": rng.random(20_000) < 0.5 + 0.3 * (p - 0.5)}
    audit = tu.audit(data, outcome="y", prediction="p", tolerance="10%")
    assert lead(audit)[-1] == (
        "Largest problem: all rows (100% of rows): errors at some scores certainly exceed 10%; "
        "the mean error may be smaller."
    )
    figure = key_figures(audit, Vocabulary())[2]
    assert (figure.name, figure.value, figure.detail) == ("largest certain error", "over 10%", "at some scores: all rows")
