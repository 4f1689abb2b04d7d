from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.errors import ArgumentError, DataError
from trueup.metrics.binned import (
    DebiasedError,
    ace,
    bins,
    classwise_ece,
    debiased_ece,
    ece,
    ece_by_group,
    mce,
    proportional_ece,
    rank_calibration_error,
    top_label_ece,
)
from trueup.metrics.groups import by_group

# Ends, edges of five and ten bins as literals and as sums, and adjacent floats.
EDGES = [0.0, 0.1, 0.2, 0.3, 0.1 + 0.2, 0.6, 0.7, 0.8, 0.9, 1.0, np.nextafter(0.3, 0), np.nextafter(0.7, 1), 5e-324]
scores = st.one_of(st.sampled_from(EDGES), st.floats(0, 1))
weights = st.sampled_from([0.0, 0.25, 1.0, 2.0, 3.5])
strategies = st.sampled_from(["width", "mass"])


@st.composite
def samples(draw):
    rows = draw(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), scores, weights), min_size=1, max_size=30))
    y, p, w = (np.array(column) for column in zip(*rows, strict=True))
    w[draw(st.integers(0, len(w) - 1))] = 1.0
    return y, p, w


def width_twin(p, n_bins):
    """The bin b with b/n < p <= (b+1)/n, one by one."""
    return [0 if q == 0 else next(b for b in range(n_bins) if b / n_bins < q <= (b + 1) / n_bins) for q in p]


def mass_twin(p, w, n_bins):
    """Weights are quarters, so that their sums are exact."""
    total = int(4 * w.sum())
    return [min(int(4 * w[p < q].sum()) * n_bins // total, n_bins - 1) for q in p]


def ece_twin(y, p, w, number, norm):
    number, shares, gaps = np.array(number), [], []
    for b in set(number[w > 0]):
        ours = number == b
        shares.append(w[ours].sum() / w.sum())
        gaps.append(abs(np.average(y[ours], weights=w[ours]) - np.average(p[ours], weights=w[ours])))
    shares, gaps = np.array(shares), np.array(gaps)
    return {1: shares @ gaps, 2: math.sqrt(shares @ gaps**2), "max": gaps.max()}[norm]


# --- bins


@given(st.lists(scores, min_size=1, max_size=30), st.integers(1, 40))
def test_equal_width_bins_are_closed_on_the_right(p, n_bins):
    assert bins(p, n_bins=n_bins).tolist() == width_twin(p, n_bins)


@pytest.mark.parametrize("n_bins", [1, 3, 7, 10, 15, 49, 100, 1000])
def test_scores_on_an_edge_fall_in_the_bin_below(n_bins):
    edges = [k / n_bins for k in range(n_bins + 1)]
    assert bins(edges, n_bins=n_bins).tolist() == [0, *range(n_bins)]


def test_decimal_edges_are_exact():
    assert bins([0, 0.1, 0.2, 0.3, 0.6, 0.7, 0.9, 1]).tolist() == [0, 0, 1, 2, 5, 6, 8, 9]
    assert bins([0.28, 0.29, 0.57, 0.58], n_bins=100).tolist() == [27, 28, 56, 57]


@given(samples(), st.integers(1, 12))
def test_equal_mass_bins_use_the_weight_of_lower_scores(sample, n_bins):
    _, p, w = sample
    assert bins(p, w, n_bins=n_bins, strategy="mass").tolist() == mass_twin(p, w, n_bins)


@given(samples(), st.integers(1, 12))
def test_tied_scores_share_a_bin_and_bins_follow_the_scores(sample, n_bins):
    _, p, w = sample
    number = bins(p, w, n_bins=n_bins, strategy="mass")
    order = np.argsort(p)
    assert (np.diff(number[order]) >= 0).all()
    assert all(len(set(number[p == q])) == 1 for q in p)


def test_distinct_scores_fill_equal_mass_bins_evenly():
    p = np.random.default_rng(0).permutation(1000) / 1000
    assert np.bincount(bins(p, strategy="mass")).tolist() == [100] * 10
    assert np.bincount(bins(p[:10], n_bins=3, strategy="mass")).tolist() == [4, 3, 3]


def test_rounded_weights_do_not_move_a_bin():
    p = np.arange(1000) / 1000
    for weight in (0.1, 0.7, 1e-9, 1 / 3):
        assert np.bincount(bins(p, np.full(1000, weight), strategy="mass")).tolist() == [100] * 10


def test_ties_in_long_columns_are_never_split():
    p = np.random.default_rng(1).integers(0, 40, 120_000) / 40
    number = bins(p, n_bins=16, strategy="mass")
    for q in np.unique(p):
        assert len(np.unique(number[p == q])) == 1


def test_a_constant_score_is_one_bin():
    assert set(bins([0.3] * 20, strategy="mass").tolist()) == {0}
    assert len(np.unique(bins([7.5] * 20, real=True))) == 1


def test_rows_of_weight_zero_get_a_bin_without_influence():
    p, w = [0.1, 0.2, 0.3, 0.4, 0.9], [1, 1, 1, 1, 0]
    assert bins(p, w, n_bins=4, strategy="mass").tolist() == [0, 1, 2, 3, 3]
    assert bins([-9, 0, 4, 99], [0, 1, 1, 0], n_bins=2, real=True).tolist() == [0, 0, 1, 1]


def test_real_scores_are_binned_between_their_extremes():
    assert bins([-10, -5, 0, 0.1, 10], n_bins=2, real=True).tolist() == [0, 0, 0, 1, 1]


# --- ece, mce, ace


def test_worked_example():
    # Bin (0, .1]: scores 0 and .1, outcomes 0 and 1: gap .5 - .05 = .45. Bin (.9, 1]: score 1, outcomes 1, 1, 0: gap -1/3.
    y, p = [0, 1, 1, 1, 0], [0, 0.1, 1, 1, 1]
    assert ece(y, p) == pytest.approx(0.4 * 0.45 + 0.6 / 3)
    assert ece(y, p, norm=2) == pytest.approx(math.sqrt(0.4 * 0.45**2 + 0.6 / 9))
    assert mce(y, p) == ece(y, p, norm="max") == pytest.approx(0.45)


def test_ace_is_ece_over_equal_mass_bins():
    # Two bins of two rows: gaps 0 - .15 and .5 - .35.
    y, p = [0, 0, 0, 1], [0.1, 0.2, 0.3, 0.4]
    assert ace(y, p, n_bins=2) == ece(y, p, n_bins=2, strategy="mass") == pytest.approx(0.15)


@given(samples(), st.integers(1, 12), strategies, st.sampled_from([1, 2, "max"]))
def test_ece_equals_its_twin(sample, n_bins, strategy, norm):
    y, p, w = sample
    number = width_twin(p, n_bins) if strategy == "width" else mass_twin(p, w, n_bins)
    result = ece(y, p, w, n_bins=n_bins, strategy=strategy, norm=norm)
    assert result == pytest.approx(ece_twin(y, p, w, number, norm), abs=1e-12)


@given(samples(), strategies, st.sampled_from([1, 2, "max"]))
def test_weight_two_equals_duplicated_rows(sample, strategy, norm):
    y, p, w = sample
    count = np.ceil(w).astype(int)
    twice = [np.repeat(column, count) for column in (y, p)]
    options = {"strategy": strategy, "norm": norm}
    assert ece(y, p, count, **options) == pytest.approx(ece(*twice, **options), abs=1e-12)


@given(samples(), strategies, st.randoms(use_true_random=False))
def test_row_order_does_not_matter(sample, strategy, random):
    y, p, w = sample
    order = list(range(len(y)))
    random.shuffle(order)
    for measure in (ece, mce, lambda *a, **k: debiased_ece(*a, **k).squared):
        before, after = measure(y, p, w, strategy=strategy), measure(y[order], p[order], w[order], strategy=strategy)
        assert before == pytest.approx(after, abs=1e-9, nan_ok=True)


@given(samples(), strategies)
def test_the_norms_are_in_order(sample, strategy):
    one, two, most = (ece(*sample, strategy=strategy, norm=norm) for norm in (1, 2, "max"))
    assert one <= two + 1e-12
    assert two <= most + 1e-12


def test_real_outcomes_are_measured_in_their_own_unit():
    assert ece([110, 130], [100, 200], n_bins=2, real=True) == pytest.approx((10 + 70) / 2)
    assert ace([110, 130], [100, 200], n_bins=1, real=True) == pytest.approx(30)


def test_inputs_are_not_modified():
    p = np.array([0.1, 0.9, 0.5])
    w = np.array([1.0, 0.0, 2.0])
    y = np.array([0.0, 1.0, 1.0])
    for array in (y, p, w):
        array.setflags(write=False)
    for measure in (ece, ace, mce, debiased_ece):
        measure(y, p, w)
    bins(p, w, strategy="mass")
    assert (y.tolist(), p.tolist(), w.tolist()) == ([0.0, 1.0, 1.0], [0.1, 0.9, 0.5], [1.0, 0.0, 2.0])


# --- classes


def test_top_label_is_the_error_of_the_confidence():
    # Confidences .6, .6, .9; the first and the last come true: gaps .5 - .6 over two rows, 1 - .9 over one.
    p = [[0.6, 0.3, 0.1], [0.2, 0.6, 0.2], [0.05, 0.05, 0.9]]
    assert top_label_ece([0, 2, 2], p) == pytest.approx(0.1)
    assert top_label_ece([0, 2, 2], p, [1, 0, 1]) == pytest.approx((0.4 + 0.1) / 2)


def test_equal_highest_scores_go_to_the_first_column():
    assert top_label_ece([0], [[0.5, 0.5]]) == top_label_ece([1], [[0.5, 0.5]]) == 0.5
    assert top_label_ece([0, 1], [[0.5, 0.5]] * 2) == 0


@given(st.integers(2, 4), st.integers(1, 20), st.integers(0, 1000), strategies)
def test_classwise_is_the_mean_of_the_errors_of_the_columns(k, n, seed, strategy):
    random = np.random.default_rng(seed)
    p, y, w = random.dirichlet(np.ones(k), n), random.integers(0, k, n), random.integers(1, 4, n)
    each = [ece((y == j).astype(float), p[:, j], w, strategy=strategy) for j in range(k)]
    assert classwise_ece(y, p, w, strategy=strategy) == pytest.approx(np.mean(each), abs=1e-12)
    top = ece((p.argmax(axis=1) == y).astype(float), p.max(axis=1), w, strategy=strategy)
    assert top_label_ece(y, p, w, strategy=strategy) == pytest.approx(top, abs=1e-12)


@pytest.mark.parametrize(
    ("y", "p", "message"),
    [
        ([0, 2], [[0.5, 0.5], [0.5, 0.5]], r"class indices 0 to 1; got 2 at row 1 \(1 such row\)"),
        ([0, 0.5], [[0.5, 0.5], [0.5, 0.5]], "got 0.5 at row 1"),
        ([0, 1], [0.5, 0.5], r"one column per class, two or more; got shape \(2,\)"),
        ([0, 1], [[0.5, 0.5], [0.5, 0.4]], r"add up to 1; got 0.9 at row 1"),
        ([0, 1], [[0.5, 0.5], [1.5, -0.5]], "not be negative"),
        ([0, 1], [[0.5, 0.5], [np.nan, 0.5]], "at row 1"),
        ([0, 1], [["a", "b"], ["c", "d"]], "p must hold numbers"),
        ([0], [[0.5, 0.5], [0.5, 0.5]], "equal length; got 1 and 2"),
    ],
)
@pytest.mark.parametrize("measure", [top_label_ece, classwise_ece])
def test_invalid_class_scores_are_rejected(measure, y, p, message):
    with pytest.raises(DataError, match=message):
        measure(y, p)


def test_row_numbers_in_errors_include_rows_of_weight_zero():
    with pytest.raises(DataError, match="got 7 at row 2"):
        top_label_ece([0, 0, 7], [[0.5, 0.5]] * 3, [0, 1, 1])


# --- debiased


def test_worked_debiased_example():
    # Bin (.2, .3]: rate .5, gap .25, noise .25/3. Bin (.7, .8]: rate 1, gap .25, no noise. Bin (.9, 1]: one row.
    y, p = [0, 0, 1, 1, 1, 1, 0], [0.25] * 4 + [0.75] * 2 + [1.0]
    result = debiased_ece(y, p)
    assert result.squared == pytest.approx((4 * (0.0625 - 0.25 / 3) + 2 * 0.0625) / 6)
    assert result.value == float(result) == pytest.approx(math.sqrt(result.squared))
    assert (result.bins, result.left_out) == (2, 1)
    assert repr(result) == "<DebiasedError 0.08333 over 2 bins, 1 of one row left out>"


def test_soft_outcomes_subtract_the_variance_of_the_residuals():
    # Residuals .1, .3, .5 in one bin: mean .3, sample variance .04.
    result = debiased_ece([0.5, 0.6, 0.9], [0.4, 0.3, 0.4], n_bins=2)
    assert result.squared == pytest.approx(0.09 - 0.04 / 3)
    real = debiased_ece([50, 60, 90], [40, 30, 40], n_bins=1, real=True)
    assert real.squared == pytest.approx(1e4 * result.squared)


def test_weights_enter_through_the_effective_size():
    # Weights 2 and 1: effective size 9/5, rate 2/3, noise (2/9)/(4/5).
    result = debiased_ece([1, 0], [0.25, 0.25], [2, 1])
    assert result.squared == pytest.approx((2 / 3 - 0.25) ** 2 - (2 / 9) / (4 / 5))
    assert debiased_ece([1, 0], [0.25, 0.25], [20, 10]).squared == pytest.approx(result.squared)


def test_debiased_error_is_zero_within_noise_and_nan_without_rows():
    assert debiased_ece([0, 1], [0.5, 0.5]) == DebiasedError(0.0, -0.25, 1, 0)
    separate = debiased_ece([0, 1], [0.1, 0.9])
    assert math.isnan(separate.value)
    assert (separate.bins, separate.left_out) == (0, 2)
    assert debiased_ece([0, 1], [0.1, 0.1], [1, 1e-20]).left_out == 1


def repeated(draw, repetitions):
    """Mean of the squared estimate, and three standard errors of it."""
    random = np.random.default_rng(5)
    result = np.array([draw(random) for _ in range(repetitions)])
    return result.mean(), 3 * result.std() / math.sqrt(repetitions)


@pytest.mark.parametrize("shift", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.repeated(1000, 4000)
def test_debiased_square_is_unbiased_for_bins_of_one_score(shift, weighted, repetitions):
    p = np.repeat([0.05, 0.25, 0.45, 0.85], 10)
    w = np.tile([1.0, 3.0], 20) if weighted else None
    mean, slack = repeated(lambda random: debiased_ece(random.random(40) < p + shift, p, w).squared, repetitions)
    assert abs(mean - shift**2) < slack
    naive, slack = repeated(lambda random: ece(random.random(40) < p, p, w, norm=2) ** 2, 500)
    assert naive > 3 * slack  # the bias that it corrects is visible


@pytest.mark.repeated(1000, 4000)
def test_debiased_square_of_soft_outcomes_is_unbiased(repetitions):
    def draw(random):
        p = random.uniform(0.1, 0.9, 60)
        return debiased_ece(p + random.uniform(-0.1, 0.1, 60), p, n_bins=4, strategy="mass").squared

    mean, slack = repeated(draw, repetitions)
    assert abs(mean) < slack


@pytest.mark.repeated(1000, 4000)
def test_debiased_square_of_binary_outcomes_is_low_by_the_score_variance(repetitions):
    # One bin of 20 rows, scores uniform on [0, 1]: var(p)/n = 1/240.
    def draw(random):
        p = random.random(20)
        return debiased_ece(random.random(20) < p, p, n_bins=1).squared

    mean, slack = repeated(draw, repetitions)
    assert abs(mean + 1 / 240) < slack


# --- groups


def test_group_errors_equal_separate_calls():
    random = np.random.default_rng(3)
    p, group, w = random.random(300), random.choice(["a", "b", "c"], 300), random.integers(0, 3, 300)
    y = random.random(300) < p
    result = ece_by_group(y, p, group, w, n_bins=5, norm=2)
    assert result.groups == ("a", "b", "c")
    for at, name in enumerate(result.groups):
        ours = group == name
        assert result.values[at] == pytest.approx(ece(y[ours], p[ours], w[ours], n_bins=5, norm=2))
        assert result.rows[at] == np.sum(ours & (w > 0))
    assert result.worst == (result.groups[np.argmax(result.values)], result.values.max())


def test_the_worst_group_is_named():
    result = ece_by_group([0, 1, 1, 1], [0.25, 0.25, 0.5, 0.75], [2, 2, 10, 10])
    assert result.worst == (10, 0.375)
    assert repr(result) == "<GroupErrors: ece is largest in group 10: 0.375 (2 rows); 2 groups>"
    with pytest.raises(FrozenInstanceError):
        result.groups = ()


def test_missing_labels_are_one_group_and_come_last():
    import pandas as pd

    for labels in ([None, "a", float("nan"), "b"], pd.Series([None, "a", pd.NA, "b"], dtype="string")):
        assert ece_by_group([0, 1, 1, 0], [0.5] * 4, labels).groups == ("a", "b", None)
    assert ece_by_group([0, 1, 1], [0.5] * 3, [np.nan, 2.0, np.nan]).rows.tolist() == [1, 2]
    assert ece_by_group([0, 1, 1], [0.5] * 3, np.array(["x", 3, True], object)).groups == (True, 3, "x")


def test_a_group_without_weight_is_left_out():
    assert ece_by_group([0, 1], [0.5, 0.5], ["a", "b"], [0, 1]).groups == ("b",)


def test_any_measure_can_be_computed_by_group():
    y, p, group = [0, 1, 1, 0], [[0.75, 0.25]] * 4, ["a", "a", "b", "b"]
    assert by_group(top_label_ece, y, p, group, n_bins=4).values.tolist() == [0.25, 0.25]
    result = by_group(debiased_ece, [0, 1, 1], [0.25, 0.25, 0.75], ["a", "a", "b"])
    assert result.worst == ("a", 0.0)
    assert repr(result).endswith("2 groups, 1 undefined>")
    assert by_group(lambda y, p, weight: len(y), [0, 1, 1], [0.5] * 3, [1, 2, 2]).worst == (2, 2.0)


def test_group_errors_convert_to_frames(frame):
    result = ece_by_group([0, 1, 1, 1], [0.25, 0.25, 0.5, 0.75], ["a", "a", None, None])
    made = result.to_frame(like=frame({"x": [1]}))
    assert list(made["value"].to_numpy()) == [0.25, 0.375]
    assert set(result.to_frame()) == {"group", "value", "rows"}
    assert result.to_frame()["group"].tolist() == ["a", None]


# --- errors


@pytest.mark.parametrize("n_bins", [0, -1, 2.5, True, "10"])
def test_invalid_numbers_of_bins_are_rejected(n_bins):
    with pytest.raises(ArgumentError, match="n_bins must be an integer at least 1"):
        ece([0, 1], [0.5, 0.5], n_bins=n_bins)


def test_unknown_options_are_rejected():
    with pytest.raises(ArgumentError, match="strategy must be one of 'width', 'mass'; got 'uniform'"):
        bins([0.5], strategy="uniform")
    with pytest.raises(ArgumentError, match="norm must be 1, 2 or 'max'; got 3"):
        ece([0, 1], [0.5, 0.5], norm=3)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([0.5, 1.5], "p must lie in"),
        ([0.5, np.nan], "p must be finite"),
        ([[0.5, 0.5]], "p must be one-dim"),
        (0.5, "p must be one-dim"),
        ([[0.5], [0.5, 0.1]], "p must hold numbers"),
        ([], "empty"),
    ],
)
def test_invalid_scores_are_rejected(p, message):
    with pytest.raises(DataError, match=message):
        bins(p)


def test_mismatched_groups_are_rejected():
    with pytest.raises(DataError, match="equal length; got shapes"):
        ece_by_group([0, 1], [0.5, 0.5], ["a"])
    with pytest.raises(DataError, match="equal length"):
        ece_by_group(1, 0.5, "a")
    with pytest.raises(DataError, match="no row has a positive weight"):
        ece_by_group([0, 1], [0.5, 0.5], ["a", "b"], [0, 0])
    with pytest.raises(DataError, match=r"group 'b' \(rows counted within it\): p must lie in \[0, 1\]; got 2 at row 0"):
        ece_by_group([0, 1], [0.5, 2], ["a", "b"])


def test_indicator_groups_may_overlap():
    y, p = np.array([0.0, 1.0, 1.0, 1.0]), np.array([0.25, 0.25, 0.5, 0.75])
    indicators = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]])
    result = by_group(mce, y, p, indicators)
    assert result.groups == (0, 1)
    assert result.rows.tolist() == [2, 3]
    assert result.values.tolist() == [mce(y[:2], p[:2]), mce(y[[0, 2, 3]], p[[0, 2, 3]])]
    with pytest.raises(DataError, match="must be 0 and 1"):
        by_group(mce, y, p, 2 * indicators)
    with pytest.raises(DataError, match="every group is empty"):
        by_group(mce, y, p, np.zeros((4, 2)))


def test_measure_must_be_a_function_that_returns_a_number():
    with pytest.raises(ArgumentError, match="measure must be a function; got 'ece'"):
        by_group("ece", [0, 1], [0.5, 0.5], ["a", "b"])
    with pytest.raises(ArgumentError, match="measure must return a number; got list"):
        by_group(lambda y, p, w: [1], [0, 1], [0.5, 0.5], ["a", "b"])


# ------------------------------------------------------------------ relative and rank calibration errors


def test_the_proportional_error_is_worked_by_hand():
    # Bins of .05 (mean outcome .1, relative gap 1) and .8 (mean outcome .6, relative gap 1/4), half of the rows each.
    p, y = np.repeat([0.05, 0.8], 10), np.concatenate([np.repeat([1, 0], [1, 9]), np.repeat([1, 0], [6, 4])])
    assert proportional_ece(y, p) == pytest.approx((1 + 0.25) / 2)
    assert proportional_ece(y, p, np.repeat([3.0, 1.0], 10)) == pytest.approx((3 + 0.25) / 4)
    assert proportional_ece(y, p, strategy="mass", n_bins=1) == pytest.approx(0.075 / 0.425)


def test_scores_of_zero_have_no_relative_error_unless_contradicted():
    assert proportional_ece([0, 1], [0, 1]) == 0
    assert proportional_ece([1, 1], [0, 1]) == math.inf


def test_ranks_of_bins_are_worked_by_hand():
    # Mean outcomes of four bins in the order of the score: .2, .8, .4, .6, so ranks 1, 4, 2, 3: (0 + 2 + 1 + 1) / 4 / 4.
    means = np.array([0.2, 0.8, 0.4, 0.6])
    p, y = np.arange(20) / 20, np.concatenate([np.repeat([1, 0], [round(5 * m), round(5 - 5 * m)]) for m in means])
    assert rank_calibration_error(y, p, n_bins=4) == pytest.approx(0.25)
    assert rank_calibration_error(100 * y, 1000 * p, n_bins=4, real=True) == pytest.approx(0.25)
    assert rank_calibration_error(np.sort(y), p, n_bins=2) == 0
    # Equal outcomes everywhere: all bins have the mean rank, and differ from it by 3/8, 1/8, 1/8 and 3/8.
    assert rank_calibration_error(np.zeros(20), p, n_bins=4) == pytest.approx(0.25)


def test_a_weight_of_two_counts_a_row_twice_in_ranks():
    random = np.random.default_rng(0)
    y, p, w = random.integers(0, 2, 60), random.random(60), random.integers(1, 3, 60)
    twice = np.repeat(np.arange(60), w)
    assert rank_calibration_error(y, p, w, n_bins=6) == pytest.approx(rank_calibration_error(y[twice], p[twice], n_bins=6))
    assert rank_calibration_error(y, np.full(60, 0.3)) == 0  # one bin


def test_bins_closed_on_the_left_contain_their_lower_edge():
    p = np.array([0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 1.0])
    assert bins(p, n_bins=4, closed="left").tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert bins(p, n_bins=4).tolist() == [0, 0, 0, 1, 1, 2, 3]
    y = [0, 1, 1, 0, 1, 1, 1]
    for measure in (ece, mce):
        moved = np.where(np.isin(p, [0.25, 0.5, 0.75]), p + 1e-9, p)  # the same rows, off the edges
        assert measure(y, p, n_bins=4, closed="left") == pytest.approx(measure(y, moved, n_bins=4), abs=1e-8)
    with pytest.raises(ArgumentError, match="closed must be one of"):
        ece(y, p, closed="both")
