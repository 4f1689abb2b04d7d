"""What a page advises: in words that fit what was found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from trueup.audits.result import Source
from trueup.reports.advice import fit_command, next_after, next_step, reach, tell
from trueup.reports.compare import compare
from trueup.reports.page import render
from trueup.reports.profiles import Words, load_profile


def make(seed: int, *, wrong: float = 1.0, n: int = 12_000):
    """Make rows of two columns; the small part b=1 is wrong by a factor, the large whole by little."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.1, 0.4, n)
    b = (rng.random(n) < 0.03).astype(str)
    truth = np.where(b == "True", np.minimum(p * wrong, 1.0), p * (1.0 + 0.1 * (wrong > 1)))
    return {"b": b, "c": rng.integers(0, 3, n).astype(str), "p": p, "y": (rng.random(n) < truth) * 1}


def look(data, **given):
    return tu.audit(data, outcome="y", prediction="p", by=["b", "c"], **given)


@pytest.fixture(scope="module")
def off():
    return look(make(0, wrong=1.5))


@pytest.fixture(scope="module")
def fine():
    return look(make(0))


def test_the_strongest_evidence_and_the_largest_error_are_both_told(off):
    told = tell(off)
    strongest = off.worst(1)[0]
    largest = max(off.worst(off.rejected), key=lambda one: abs(one.bias))
    assert strongest.segment != largest.segment
    assert f"strongest on {strongest.segment}: observed/expected {strongest.ratio:.2f}." in told
    assert f"largest difference among them is on {largest.segment} ({largest.n:,} rows): observed 0." in told


def test_where_nothing_is_off_no_error_is_called_large(fine):
    told = tell(fine)
    assert told.startswith(
        f"0 of {fine.tested} segments are off beyond chance, at 5% (Holm). The evidence is strongest on "
    )
    assert told.endswith(", within chance.")
    assert "largest" not in told


def test_one_segment_is_off(fine):
    one = replace(fine, columns=fine.columns | {"p_adjusted": np.append(0.01, fine.columns["p_adjusted"][1:])})
    assert tell(one).startswith(f"1 of {fine.tested} segments is off beyond chance")
    assert "largest" not in tell(one)  # it is the one that was named


def test_after_a_fix_that_holds_the_page_says_to_use_it(off, fine):
    assert next_after("fixed", off, fine).text.startswith("Next: use fixed, if these rows did not teach the fix")
    assert next_after("after MCGrad", off, fine).text.startswith("Next: use the scores after MCGrad, if")
    assert next_after("after", off, fine).text.startswith("Next: use the corrected scores, if")


def test_after_a_fix_that_does_harm_the_page_says_not_to_use_it(off, fine):
    text = next_after("fixed", fine, off).text
    assert text == f"Next: do not use fixed yet. {off.rejected} segments are off, where 0 were before."


def test_after_a_fix_that_does_not_suffice_the_page_says_how_many_are_left(off):
    assert f"{off.rejected} segments are still off" in next_after("fixed", off, off).text


def test_two_audits_without_a_finding_need_no_fix(fine):
    assert "nothing was found to fix" in next_after("fixed", fine, fine).text


def test_a_comparison_of_different_rows_says_so(off):
    other = look(make(1, wrong=1.5))
    told = compare({"March": off, "April": other}, load_profile("general").words)
    assert told.sentence == "These are audits of different rows: what moved may be the rows, not the scores."
    assert told.step.text.startswith("Next: correct the scores")
    assert "different rows" not in render([off, off])


def test_the_command_that_the_source_knows_is_given_as_it_is(off):
    told = "trueup fit --sql \"FROM 'a.parquet'\" --outcome y --prediction p -o model.trueup"
    assert fit_command(replace(off, source=Source((), "trueup audit", told))) == told


def test_without_a_source_the_fix_is_a_line_of_python_that_runs(off):
    assert fit_command(off) == 'trueup.MCGrad("p", ["b", "c"]).fit(rows, rows["y"])'
    rows = make(0, wrong=1.5, n=3_000)
    fitted = eval(fit_command(off), {"trueup": tu, "rows": rows})
    assert fitted.predict(rows).shape == (3_000,)


def test_the_line_of_python_names_weights_several_scores_and_amounts():
    rng = np.random.default_rng(0)
    p, n = rng.dirichlet([2, 2], 2_000), 2_000
    rows = {"p": p[:, 0], "q": p[:, 1], "w": rng.uniform(1, 2, n), "g": rng.choice(["u", "v"], n)}
    classes = {**rows, "y": np.where(rng.random(n) < p[:, 0] ** 2, "p", "q")}
    told = fit_command(tu.audit(classes, outcome="y", prediction=["p", "q"], weight="w", by=["g"]))
    assert told == 'trueup.MCGrad(["p", "q"], ["g"]).fit(rows, rows["y"], sample_weight=rows["w"])'
    amounts = {**rows, "y": 3 * p[:, 0]}
    told = fit_command(tu.audit(amounts, outcome="y", prediction="p", by=["g"], task="regression"))
    assert told == 'trueup.MCGrad("p", ["g"], task="regression").fit(rows, rows["y"])'


def test_where_every_other_column_is_a_feature_the_outcome_is_named_and_so_set_apart(off):
    features = tuple(replace(off.schema.features[0], name=f"f{at}") for at in range(9))
    many = replace(off, schema=replace(off.schema, features=features))
    assert fit_command(many) == 'trueup.MCGrad("p").fit(rows, "y")'


def test_advice_speaks_the_words_of_a_trade(off, fine):
    words = Words(observed="seen rate", expected="said rate", segment="group", segments="groups", rows="patients")
    told = tell(off, words)
    assert told.startswith(f"{off.rejected} of {off.tested} groups are off beyond chance")
    assert " patients): seen rate 0." in told
    assert ", said rate 0." in told
    assert "segment" not in told + next_after("fixed", off, off, words).text + " ".join(reach(fine, words))


@pytest.mark.parametrize(
    ("names", "headline"),
    [
        (("before", "after"), "{} segments off before, 0 after"),
        (("before", "after MCGrad"), "{} segments off before, 0 after MCGrad"),
        (("pctr", "pctr_trueup"), "{} segments off with pctr, 0 with pctr_trueup"),
        (("afterpay", "beforehand"), "{} segments off with afterpay, 0 with beforehand"),
    ],
)
def test_the_headline_of_a_comparison_reads_well_whatever_the_names(off, names, headline):
    good = replace(off, columns=off.columns | {"p_adjusted": np.ones(len(off))})  # the same rows, and nothing off
    told = compare(dict(zip(names, (off, good), strict=True)), Words())
    assert told.headline == headline.format(off.rejected)


def test_a_shift_that_no_rate_can_make_is_not_promised_to_be_found():
    few = tu.audit({"y": [1, 0], "p": [0.3, 0.4], "g": ["a", "b"]}, outcome="y", prediction="p", min_rows=1)
    assert few.overall.mde > 1
    assert [line for line in reach(few) if "percentage points" in line] == []
    assert reach(few)[0].startswith("Over all rows, no shift")
    assert reach(few)[1].endswith("no shift would have been found so often.")
    assert reach(few)[2].endswith("no shift, however large.")
    assert next_step(few).text.startswith("Next: gather more rows before taking comfort. Any error in a mean of 0.50 could")
    assert "too few rows: no shift over all rows would have been found" in repr(few)
    assert "a shift of" not in render(few)


def test_real_outcomes_need_some_rows_and_the_page_says_how_many():
    amounts = {"y": np.arange(9) + 0.5, "p": np.arange(9.0), "g": list("aaabbbccc")}
    few = tu.audit(amounts, outcome="y", prediction="p", task="regression", min_rows=1)
    assert few.tested == 0
    assert tell(few) == "No segment has 10 rows."
    assert next_step(few).text.endswith("needs at least 10 to be tested.")
    assert few.verdict == "nothing could be tested: no segment has 10 rows"
