"""Stopping rules: who judges, and which round is chosen; the loss and its one factor."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit

import trueup as tu
from trueup.calibrators import stopping
from trueup.calibrators.history import History, Round
from trueup.calibrators.mcgrad.grower import LINE_LEVEL
from trueup.calibrators.mcgrad.line import fit_lines, line_p_value
from trueup.calibrators.stopping import (
    AFTER_LINE_ERRORS,
    FIRST_ROUND_ERRORS,
    LATER_ROUND_ERRORS,
    LINE_TEST_ERRORS,
    SCORE_TEST_ERRORS,
    SEARCH_ERRORS,
    SMALL_SAMPLE_ROWS,
    THETA_BOUNDS,
    Evaluation,
    Split,
    choose_rounds,
    score_test,
    shrink_gain,
    task_loss,
)
from trueup.data.folds import assign_folds
from trueup.errors import ArgumentError


def test_the_last_significant_round_is_chosen():
    base = np.tile([0.7, 0.8, 0.6, 0.7], 4)
    better = base - np.tile([0.2, 0.1, 0.2, 0.1], 4)
    chosen, judged = choose_rounds(iter([base, better, better + 0.1]), None)
    assert chosen == 1
    np.testing.assert_allclose(judged[0][:3], (0.7, 0, 0))
    # Gains .2 .1 .2 .1 ...: mean .15, each .05 from it, so that all 16 rows carry the error: sqrt(.05^2 / 15).
    np.testing.assert_allclose(judged[1][:3], (0.55, 0.15, 0.05 / np.sqrt(15)))
    np.testing.assert_allclose(judged[2][:3], (0.65, -0.1, 0), atol=1e-12)


def test_weights_are_importance_weights():
    base, next_ = np.array([1.0, 1.0]), np.array([0.0, 0.5])
    _, judged = choose_rounds(iter([base, next_]), np.array([3.0, 1.0]))
    # Mean gain (3 x 1 + .5) / 4 = .875; error sqrt((3 x .125)^2 + (1 x .375)^2) / 4; (3 + 1)^2 / (9 + 1) rows carry it.
    np.testing.assert_allclose(judged[1][:3], (0.125, 0.875, np.sqrt(0.375**2 * 2) / 4 * np.sqrt(1.6 / 0.6)))


def test_a_gain_must_exceed_the_required_standard_errors():
    rows = 26
    base, spread = np.ones(rows), np.tile([0.1, -0.1], rows // 2)
    unit = (1 + SMALL_SAMPLE_ROWS / (rows - 1)) * 0.1 / np.sqrt(rows - 1)  # all rows carry the error alike
    for gain, chosen in ((0.99 * FIRST_ROUND_ERRORS, 0), (1.01 * FIRST_ROUND_ERRORS, 1)):
        assert choose_rounds(iter([base, base - unit * gain - spread]), None)[0] == chosen
    first = base - 0.2
    for gain, chosen in ((0.99 * LATER_ROUND_ERRORS, 1), (1.01 * LATER_ROUND_ERRORS, 2)):
        assert choose_rounds(iter([base, first, first - unit * gain - spread]), None)[0] == chosen


def test_the_threshold_of_every_round_is_recorded():
    rows = 26
    base, spread = np.ones(rows), np.tile([0.1, -0.1], rows // 2)
    small = 1 + SMALL_SAMPLE_ROWS / (rows - 1)
    losses = iter([base, base - 0.001 - spread, base - 0.001 - 3 * spread])
    chosen, judged = choose_rounds(losses, None, is_line=lambda number: number == 1, errors=SEARCH_ERRORS)
    assert chosen == 1, "a line is kept if it lowers the loss: its test has shown that it is needed"
    thresholds = [evaluation.threshold for evaluation in judged]
    assert thresholds == [None, 0.0, pytest.approx(AFTER_LINE_ERRORS * small)]
    _, judged = choose_rounds(iter([base, base - spread]), None, errors=SEARCH_ERRORS)
    assert judged[1].threshold == pytest.approx(SEARCH_ERRORS * small)
    assert choose_rounds(iter([base, base - spread]), None, lowest=True)[1][1].threshold is None


@pytest.mark.parametrize("name", ["binary", "regression", "multiclass"])
def test_slopes_are_the_derivatives_of_the_loss_along_a_step(name):
    random, loss = np.random.default_rng(7), task_loss(name)
    outputs = 3 if name == "multiclass" else 1
    F, step = random.normal(size=(2, 50, outputs))
    y = random.normal(size=50) if name == "regression" else random.integers(0, max(outputs, 2), 50).astype(float)
    slopes, implied = loss.slopes(y, F, step)
    small = 1e-5
    numeric = (loss.per_row(y, F - small * step) - loss.per_row(y, F + small * step)) / (2 * small)
    np.testing.assert_allclose(slopes, numeric, atol=1e-8)
    if name == "regression":
        assert implied is None
        return
    # Their mean is 0 and their variance as stated if the probabilities are those of the outcomes.
    p = np.exp(F) / np.exp(F).sum(axis=1, keepdims=True) if outputs > 1 else np.hstack([1 - expit(F), expit(F)])
    every = np.array([loss.slopes(np.full(50, float(k)), F, step)[0] for k in range(p.shape[1])]).T
    np.testing.assert_allclose((p * every).sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose((p * every**2).sum(axis=1), implied, rtol=1e-9)


def test_a_score_test_uses_the_larger_of_the_observed_and_the_implied_error():
    slopes = np.tile([3.0, -1.0], 8)  # mean 1, each 2 from it: an error of 2 / sqrt(15)
    assert score_test(slopes, None, None) == (pytest.approx(np.sqrt(15) / 2), pytest.approx(16))
    assert score_test(slopes, np.full(16, 1.0), None)[0] == pytest.approx(np.sqrt(15) / 2)
    assert score_test(slopes, np.full(16, 9.0), None)[0] == pytest.approx(4 / 3)  # sqrt(16 x 9) / 16 = .75
    assert score_test(slopes, np.full(16, 9.0), None, cluster=np.arange(16))[0] == pytest.approx(np.sqrt(15) / 2)
    assert score_test(slopes, np.full(16, 9.0), np.full(16, 5.0))[0] == pytest.approx(4 / 3), "weights have no unit"
    assert score_test(np.zeros(16), None, None)[0] == 0


def test_the_first_round_must_pass_the_score_test():
    rows = 26
    base, spread = np.ones(rows), np.tile([0.1, -0.1], rows // 2)
    error = 0.1 / np.sqrt(rows - 1)
    after = base - error - spread  # a gain of one standard error
    needed = SCORE_TEST_ERRORS * (1 + SMALL_SAMPLE_ROWS / (rows - 1))
    for factor, kept in ((0.99, 0), (1.01, 1)):
        own = (error * needed * factor + spread, None)
        chosen, judged = choose_rounds(iter([base, after]), None, errors=SCORE_TEST_ERRORS, slopes=lambda own=own: own)
        assert chosen == kept
        # The gain exceeds its threshold by as many standard errors as the slope does.
        assert judged[1].gain / judged[1].error - judged[1].threshold == pytest.approx(needed * (factor - 1))
        assert judged[1].shrunken_gain == 0, "a gain near the threshold may be chance"
    own = (error * 3 * needed + spread, None)
    _, judged = choose_rounds(iter([base, after]), None, errors=SCORE_TEST_ERRORS, slopes=lambda: own)
    assert judged[1].shrunken_gain == pytest.approx(judged[1].gain), "one far beyond it is not"
    worse = base + error - spread
    strong = (error * 10 * needed + spread, None)
    assert choose_rounds(iter([base, worse]), None, errors=SCORE_TEST_ERRORS, slopes=lambda: strong)[0] == 0
    line_first = iter([base, base - 0.2, base - 0.2 - spread])
    chosen, judged = choose_rounds(line_first, None, is_line=lambda number: number == 1, slopes=lambda: strong)
    assert chosen == 1, "after a line the gain counts"


def test_the_score_test_finds_errors_that_the_gain_does_not_show():
    random, kept, gains = np.random.default_rng(12), [], []
    for seed in range(6):
        x, F = random.normal(size=(2, 3000))
        y = (random.random(3000) < expit(F + 0.3 * np.sign(x))).astype(float)
        data = {"x": x, "p": expit(F), "y": y}
        history = tu.MCGrad("p", ["x"], depth=2, threads=1, random_state=seed).fit(data, "y").history_
        kept.append(history.chosen)
        gains.append(history.rounds[1].gain / history.rounds[1].error)
    assert all(kept)
    assert min(gains) < SEARCH_ERRORS, "the gain alone would have to exceed this many standard errors"


def test_a_gain_of_a_handful_of_rows_is_not_significant():
    base = np.full(1000, 0.5)
    few = base.copy()
    few[:3] -= 0.4  # three rare events, seen after the fact
    assert choose_rounds(iter([base, few]), None)[0] == 0
    assert choose_rounds(iter([base[:1], base[:1] - 0.1]), None)[0] == 0, "one row alone shows nothing"
    heavy = np.append(np.full(999, 1.0), 1e6)
    worse = np.append(base[:999] + 0.01, 0.1)
    assert choose_rounds(iter([base, worse]), heavy)[0] == 0


def test_a_negligible_gain_is_not_kept():
    base = np.linspace(0.4, 0.6, 100)
    assert choose_rounds(iter([base, base - 1e-9]), None)[0] == 0


def test_rounds_end_after_patience_rounds_without_a_gain():
    asked = []

    def losses():
        for at in range(100):
            asked.append(at)
            yield np.array([1.0, 1.0]) - (0.5 if at >= 3 else 0.0)

    assert choose_rounds(losses(), None, patience=2)[0] == 0
    assert asked == [0, 1, 2]
    asked.clear()
    assert choose_rounds(losses(), None, patience=3)[0] == 3
    assert asked == [0, 1, 2, 3, 4, 5, 6]


def test_errors_of_very_large_losses_and_weights_are_finite():
    loss, gain, error, _ = choose_rounds(iter([np.array([1e200, 2e200]), np.array([0.0, 0.0])]), np.array([1e50, 1e50]))[1][
        1
    ]
    np.testing.assert_allclose((loss, gain, error), (0.0, 1.5e200, 0.5e200))


COLUMN = st.lists(st.sampled_from([0.0, -0.0, 1.5, 2.0, float("nan"), -3.0]), min_size=1, max_size=60)


@settings(max_examples=60)
@given(COLUMN, st.integers(2, 7), st.integers(0, 5), st.randoms(use_true_random=False))
def test_folds_depend_on_content_and_not_on_order(values, parts, seed, shuffler):
    columns = [np.array(values), np.arange(len(values)) % 3]
    strata = np.array([shuffler.randint(0, 1) for _ in values], float)
    found = assign_folds(columns, strata, parts, seed)
    order = np.array(shuffler.sample(range(len(values)), len(values)))
    again = assign_folds([column[order] for column in columns], strata[order], parts, seed)
    contents = [f"{abs(a) if a == 0 else a} {b} {s}" for a, b, s in zip(*columns, strata, strict=True)]
    for content in set(contents):
        rows = [at for at, other in enumerate(contents) if other == content]
        assert sorted(found[rows]) == sorted(again[[at for at, row in enumerate(order) if row in rows]])
    assert ((found >= 0) & (found < parts)).all()


@given(st.integers(2, 10), st.integers(0, 3), st.integers(0, 400), st.integers(0, 400))
def test_each_fold_has_its_share_of_each_stratum(parts, seed, zeros, ones):
    strata = np.repeat([0.0, 1.0], [zeros, ones])
    if not len(strata):
        return
    found = assign_folds([np.arange(len(strata)) * 0.1], strata, parts, seed)
    for level in (0, 1):
        counts = np.bincount(found[strata == level], minlength=parts)
        assert counts.max() - counts.min() <= 1


@settings(max_examples=60)
@given(st.floats(0.05, 0.95), st.integers(20, 3000), st.floats(0.02, 0.5), st.integers(0, 3))
def test_consecutive_folds_have_their_share_of_each_stratum(share, rows, rate, seed):
    strata = (np.arange(rows) < rate * rows).astype(float)
    held = assign_folds([np.arange(rows) * 0.1], strata, 1000, seed) < round(1000 * share)
    for level in (0, 1):
        count = int((strata == level).sum())
        assert (
            abs(held[strata == level].sum() - share * count) <= 4
        )  # at random it would be as much as 3 x sqrt(n / 4), up to 80


def test_up_to_ten_duplicates_share_a_fold():
    column = np.repeat(np.arange(40.0), 10)
    found = assign_folds([column], np.zeros(400), 5, 0)
    assert all(len(set(found[column == value])) == 1 for value in range(40))
    assert np.bincount(found).tolist() == [80] * 5
    common = assign_folds([np.zeros(55)], np.arange(55) % 2, 5, 0)
    assert np.bincount(common).tolist() == [11] * 5


def test_events_of_duplicates_are_assigned_at_random():
    # Where each part had its share of the events of a cell, what chance made of them in one part all others would confirm.
    cell, repeats = np.repeat(np.arange(40.0), 50), 30
    found = []
    for seed in range(repeats):
        events = np.random.default_rng(seed).random(2000) < 0.5
        for own in ([], [events * 1.0]):  # binary, and a real outcome
            strata = np.zeros(2000) if own else events * 1.0
            first = assign_folds([cell], strata, 2, seed, own) == 0
            assert abs(int(first.sum()) - 1000) <= 1
            gap = [events[(cell == c) & first].mean() - events[(cell == c) & ~first].mean() for c in range(40)]
            found.append(np.mean(np.square(gap)))
    # The variance of the difference of two means of about 25 rows.
    assert np.mean(found) == pytest.approx(0.25 * 2 / 25, rel=0.1)


def test_the_seed_changes_the_folds():
    column = np.arange(200.0)
    a, b, c = (assign_folds([column], np.zeros(200), 5, seed) for seed in (0, 0, 1))
    assert (a == b).all()
    assert (a != c).mean() > 0.5


TASKS = {"binary": 1, "regression": 1, "multiclass": 3}


@settings(max_examples=60)
@given(st.sampled_from(sorted(TASKS)), st.integers(0, 10_000), st.floats(0.01, 30), st.booleans())
def test_theta_equals_the_minimum_of_scipy(task, seed, spread, weighted):
    random = np.random.default_rng(seed)
    loss, n = task_loss(task), int(random.integers(2, 60))
    F = spread * random.normal(size=(n, TASKS[task]))
    y = random.normal(size=n) * spread if task == "regression" else random.integers(0, max(2, TASKS[task]), n).astype(float)
    w = random.exponential(size=n) if weighted else None

    def total(theta):
        return float(np.average(loss.per_row(y, theta * F), weights=w))

    found = loss.theta(y, F, w)
    assert THETA_BOUNDS[0] <= found <= THETA_BOUNDS[1]
    best = minimize_scalar(total, bounds=THETA_BOUNDS, method="bounded", options={"xatol": 1e-10})
    lowest = min(best.fun, total(THETA_BOUNDS[0]), total(THETA_BOUNDS[1]))
    assert total(found) <= lowest + 1e-9 * abs(lowest) + 1e-14


def test_theta_is_one_for_scores_of_zero():
    assert task_loss("binary").theta(np.array([0.0, 1.0]), np.zeros((2, 1)), None) == 1.0


@pytest.mark.parametrize("task", sorted(TASKS))
def test_losses_match_their_formulas(task):
    random = np.random.default_rng(4)
    P = random.dirichlet(np.ones(3), 50)[:, : TASKS[task]]
    y = random.integers(0, 2, 50).astype(float)
    found = task_loss(task).per_row(y, task_loss(task).apply_link(P if task == "multiclass" else P[:, 0]))
    if task == "binary":
        expected = -np.log(np.where(y == 1, P[:, 0], 1 - P[:, 0]))
    else:
        expected = (y - P[:, 0]) ** 2 if task == "regression" else -np.log(P[np.arange(50), y.astype(int)])
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tu.Holdout(0), lambda: tu.Holdout(1.0), lambda: tu.Holdout(True), lambda: tu.Holdout("half"),
        lambda: tu.Holdout(float("nan")), lambda: tu.Holdout(0.2, patience=0), lambda: tu.CrossValidation(1),
        lambda: tu.CrossValidation(2.5), lambda: tu.CrossValidation(5, patience=0), lambda: tu.CrossValidation(5, refit=1),
        lambda: tu.Validation({"p": [0.5]}, None), lambda: tu.Validation(None, [1]), lambda: tu.Validation({}, [], patience=0),
    ],
)  # fmt: skip
def test_invalid_stopping_rules_are_rejected(make):
    with pytest.raises(ArgumentError):
        make()


def test_a_long_history_prints_some_rounds():
    rounds = (Round(0, 0, 1.0, 0.5, 0.0, 0.0, True), Round(1, 0, 1.0, 0.4, 0.1, 0.02, True))
    assert repr(History(rounds, 1, "why", "training rows", "log loss")).splitlines() == [
        "History: why",
        "  round  log loss (training rows)",
        "      0  0.500000",
        "      1  0.400000  -0.100000 (s.e. 0.020000)",
    ]
    many = tuple(Round(at, 3, 0.9, 0.5, 0.0, 0.0, True) for at in range(60))
    lines = repr(History(many, 59, "why", "training rows", "log loss")).splitlines()
    assert len(lines) == 2 + 17
    assert lines[1] == "  round  trees  theta  log loss (training rows)"
    assert lines[10] == "  ... 44 more: to_frame() returns all rounds"
    assert lines[-1].split()[0] == "59"


# ------------------------------------------------------------------ selected gains


def test_shrunken_gains_are_the_mean_of_a_truncated_normal_distribution():
    random = np.random.default_rng(0).normal(size=400_000)
    for mean, threshold in ((0.5, 1.5), (2.0, 1.5), (2.0, 1.0), (4.0, 2.0)):
        kept = random[random + mean > threshold] + mean
        assert shrink_gain(0.01 * kept.mean(), 0.01, threshold) == pytest.approx(0.01 * mean, rel=0.05)
    assert shrink_gain(0.015, 0.01, 1.5) == 0
    assert shrink_gain(0.08, 0.01, 1.5) == pytest.approx(0.08, rel=1e-6)
    assert shrink_gain(0.08, 0.0, 1.5) == 0.08
    assert shrink_gain(0.08, math.inf, 1.5) == shrink_gain(-0.1, 0.0, 1.5) == 0


def test_every_kept_round_is_shrunken_by_the_threshold_that_it_exceeded():
    line, trees = Evaluation(0.9, 0.1, 0.05, 0.0), Evaluation(0.85, 0.05, 0.02, 2.0)
    history = History.of([Evaluation(1.0), line, trees], 2, "why", "cross-validation", "log loss")
    expected = shrink_gain(0.1, 0.05, LINE_TEST_ERRORS) + shrink_gain(0.05, 0.02, 2.0)
    assert history.shrunken_gain == pytest.approx(expected)
    assert 0 < expected < shrink_gain(0.1, 0.05, 0.5) + shrink_gain(0.05, 0.02, 1.5)
    # A round that did not exceed its threshold, before one that did, is in the model, but the next gain includes its own.
    late = [Evaluation(1.0), Evaluation(0.99, 0.01, 0.02, 2.0), Evaluation(0.9, 0.1, 0.02, 2.0)]
    history = History.of(late, 2, "why", "cross-validation", "log loss")
    assert history.shrunken_gain == pytest.approx(shrink_gain(0.1, 0.02, 2.0))
    # Rounds of which the lowest is chosen are tested together.
    lowest = [Evaluation(1.0), Evaluation(0.95, 0.05, 0.03), Evaluation(0.9, 0.05, 0.04)]
    history = History.of(lowest, 2, "why", "cross-validation", "log loss")
    assert history.shrunken_gain == pytest.approx(shrink_gain(0.1, 0.05, FIRST_ROUND_ERRORS))


def test_a_line_names_its_test():
    random = np.random.default_rng(4)
    amounts = np.exp(1 + 0.5 * random.normal(size=2000))
    y = 1.3 * amounts * np.exp(0.4 * random.normal(size=2000) - 0.08)  # skewed, and 30% above their scores
    rows = {"x": random.normal(size=2000), "p": amounts, "y": y}
    history = tu.MCGrad("p", ["x"], task="regression", rounds=1, threads=1).fit(rows, "y").history_
    line = history.rounds[1]
    assert history.chosen >= 1
    assert line.p_value < 0.005
    assert line.gain > 0 == line.threshold
    assert f"a line (score test: p = {line.p_value:.2g})" in history.reason
    assert f"(score test: p = {line.p_value:.2g})" in repr(history)
    np.testing.assert_allclose(history.to_frame()["p_value"][:2], [np.nan, line.p_value])


def test_the_shrunken_gain_of_a_line_allows_for_its_test():
    random, loss, n, slope = np.random.default_rng(3), task_loss("regression"), 300, 0.15
    reported, shrunken, true = [], [], []
    for _ in range(500):
        F = random.normal(size=(n, 1))
        y = (1 + slope) * F[:, 0] + random.normal(size=n)
        if line_p_value(loss, y, F, None) >= LINE_LEVEL:
            continue
        splits = [Split(random.permutation(n) % 5, 0)]
        splits = [Split(splits[0].folds, number) for number in range(5)]
        lines, after = fit_lines(loss, y, F, None, splits), np.empty((n, 1))
        for line, split in zip(lines, splits, strict=True):
            after[split.valid] = line.slope * F[split.valid] + line.intercept
        chosen, evaluations = choose_rounds(
            iter([loss.per_row(y, F), loss.per_row(y, after)]), None, is_line=lambda _: True
        )
        if not chosen:
            continue
        reported.append(evaluations[1].gain)
        shrunken.append(evaluations[1].shrunken_gain)
        means = np.mean([line.slope for line in lines]), np.mean([line.intercept[0] for line in lines])
        true.append(slope**2 - (1 + slope - means[0]) ** 2 - means[1] ** 2)
    assert len(true) > 40
    assert abs(np.mean(shrunken) - np.mean(true)) < 0.6 * (np.mean(reported) - np.mean(true))


@given(st.floats(0, 1), st.floats(1e-6, 1), st.floats(0.5, 2))
def test_shrunken_gains_are_never_larger_and_never_negative(gain, error, threshold):
    assert 0 <= shrink_gain(gain, error, threshold) <= gain


def test_the_gain_of_kept_rounds_is_optimistic_and_the_shrunken_one_is_not():
    # A round gains 2 thousandths per row, 1.6 standard errors: reported gains of kept rounds are 1.4 times as large.
    random, reported, shrunken = np.random.default_rng(1), [], []
    for _ in range(600):
        base = random.normal(1.0, 0.1, 400)
        after = base - 0.002 - random.normal(0, 0.025, 400)
        chosen, evaluations = stopping.choose_rounds(iter([base, after]), None)
        history = History.of(evaluations, chosen, "why", "cross-validation", "log loss")
        if chosen:
            reported.append(history.loss_before - history.loss_after)
            shrunken.append(history.shrunken_gain)
        else:
            assert history.shrunken_gain == 0
    error = np.std(shrunken) / math.sqrt(len(shrunken))
    assert np.mean(reported) > 1.3 * 0.002
    assert np.mean(shrunken) == pytest.approx(0.002, abs=2 * error + 0.0001)
    assert math.isnan(History.of(evaluations, 1, "why", "training rows", "log loss").shrunken_gain)
