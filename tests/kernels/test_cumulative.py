"""The running sums against their NumPy twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twins
from trueup.kernels import tally as sums
from trueup.kernels.tally import Cells, assign, find_cells, sort_rows, tally


@st.composite
def segmented(draw, *, real=False, weighted=None):
    """Draw a few rows with ties among the scores, two code columns, and perhaps weights."""
    n = draw(st.integers(1, 40))
    scores = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])
    p = np.array(draw(st.lists(scores, min_size=n, max_size=n)))
    outcomes = st.floats(-5, 5) if real else st.sampled_from([0.0, 1.0, 0.5])
    y = np.array(draw(st.lists(outcomes, min_size=n, max_size=n)))
    weighted = draw(st.booleans()) if weighted is None else weighted
    w = np.array(draw(st.lists(st.floats(0.1, 9), min_size=n, max_size=n))) if weighted else None
    codes = [np.array(draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)), np.int32) for _ in range(3)]
    return y, p, w, codes


def _members(first, second, cell):
    return (first >= 0) & (second >= 0) & (first * 3 + second == cell)


@given(segmented())
def test_every_segment_has_the_sums_of_its_rows(case):
    y, p, w, (first, second, _) = case
    rows = sort_rows(y, p, w, real=False)
    a, b = first[rows.order], second[rows.order]
    cells = find_cells(a, b, (3, 3), 1)
    found = tally(rows, a, b, (3, 3), cells)
    for at, cell in enumerate(cells.numbers):
        member = _members(first, second, cell)
        own = None if w is None else w[member]
        weight = np.ones(member.sum()) if own is None else own
        v, k3 = twins.moments(p[member], own)
        assert found.rows[at] == member.sum()
        np.testing.assert_allclose(found.weights[at, :2], [weight.sum(), (weight**2).sum()], rtol=1e-12)
        if own is not None:
            e = weight * (y - p)[member]
            powers = [e**2, e**3, e**4, np.abs(e) ** 3]
            np.testing.assert_allclose(found.weights[at, 2:], [power.sum() for power in powers], atol=1e-12)
        np.testing.assert_allclose(found.expected[at], np.sum(weight * p[member]), atol=1e-12)
        np.testing.assert_allclose(found.residual[at], np.sum(weight * (y - p)[member]), atol=1e-12)
        np.testing.assert_allclose(found.span[at], twins.span(y[member], p[member], own), atol=1e-12)
        np.testing.assert_allclose(found.reach[at], np.abs(twins.path(y[member], p[member], own)).max(), atol=1e-12)
        np.testing.assert_allclose(found.state[at, sums.RISE], twins.rise(y[member], p[member], own), atol=1e-12)
        np.testing.assert_allclose(found.state[at, [sums.VARIANCE, sums.SKEW]], [v, k3], atol=1e-12)


@given(segmented(real=False), st.sampled_from([0.1, 3.0]))
def test_weights_that_depend_on_the_outcome_change_variance_and_skewness(case, ratio):
    y, p, b, _ = case
    b, y = np.ones(len(y)) if b is None else b, np.round(y)
    rows = replace(sort_rows(y, p, b * np.where(y == 1, ratio, 1.0), real=False), ratio=ratio)
    zeros = np.zeros(len(y), np.int32)
    found = tally(rows, zeros, zeros, (1, 1), Cells(np.zeros(1, np.int64), np.array([len(y)])))
    # Outcome 1, of probability q, adds b ratio (1 - p), outcome 0 adds -b p.
    q = p / (p + ratio * (1 - p))
    v = np.sum(q * (b * ratio * (1 - p)) ** 2 + (1 - q) * (b * p) ** 2)
    k3 = np.sum(q * (b * ratio * (1 - p)) ** 3 - (1 - q) * (b * p) ** 3)
    np.testing.assert_allclose(found.state[0, [sums.VARIANCE, sums.SKEW]], [v, k3], rtol=1e-9, atol=1e-12)
    null_q, null_a = rows.null_rows(slice(None))
    np.testing.assert_allclose(null_q, q[rows.order], atol=1e-12)
    np.testing.assert_allclose(null_a * (y[rows.order] - null_q), rows.e, atol=1e-12)


@given(segmented(real=True))
def test_the_variance_of_real_outcomes_is_that_of_successive_differences(case):
    y, p, w, (first, second, _) = case
    rows = sort_rows(y, p, w, real=True)
    a, b = first[rows.order], second[rows.order]
    cells = find_cells(a, b, (3, 3), 2)
    found = tally(rows, a, b, (3, 3), cells)
    for at, cell in enumerate(cells.numbers):
        member = _members(first, second, cell)
        own = None if w is None else w[member]
        n = member.sum()
        total = found.state[at, sums.WITHIN] + found.state[at, sums.BETWEEN] / 2
        np.testing.assert_allclose(np.sqrt(n / (n - 1) * total), twins.real_noise(y[member], p[member], own), atol=1e-9)
        np.testing.assert_allclose(found.span[at], twins.span(y[member], p[member], own), atol=1e-9)


@pytest.mark.parametrize("real", [False, True])
@given(data=st.data())
def test_tallies_of_disjoint_score_ranges_add(real, data):
    y, p, w, (first, second, _) = data.draw(segmented(real=real))
    cut = data.draw(st.sampled_from([0.05, 0.25, 0.6, 2.0]))
    cells = Cells(np.arange(9), np.zeros(9, np.int32))

    def part(keep):
        rows = sort_rows(y[keep], p[keep], None if w is None else w[keep], real=real)
        a, b = first[keep][rows.order], second[keep][rows.order]
        counts = np.array([np.sum(_members(first, second, cell) & keep) for cell in range(9)], np.int32)
        return tally(rows, a, b, (3, 3), Cells(cells.numbers, counts))

    whole, joined = part(np.ones(len(p), bool)), part(p < cut) + part(p >= cut)
    assert (whole.rows == joined.rows).all()
    np.testing.assert_allclose(joined.weights, whole.weights, rtol=1e-12)
    kept = [c for c in range(whole.state.shape[1]) if c != sums.STEP]
    np.testing.assert_allclose(joined.state[:, kept], whole.state[:, kept], atol=1e-9)


@given(segmented(), st.integers(1, 3), st.booleans())
def test_dense_and_sparse_cells_agree(case, min_rows, sparse):
    _, _, _, (first, second, _) = case
    # A shape far larger than the rows takes the way by sorting.
    shape = (3, 10_000_000) if sparse else (3, 3)
    cells = find_cells(first, second, shape, min_rows)
    number = first.astype(np.int64) * shape[1] + second
    valid = (first >= 0) & (second >= 0)
    expected, counts = np.unique(number[valid], return_counts=True)
    assert cells.numbers.tolist() == expected[counts >= min_rows].tolist()
    assert cells.rows.tolist() == counts[counts >= min_rows].tolist()
    assert cells.thin == (counts < min_rows).sum()
    place = {cell: at for at, cell in enumerate(cells.numbers.tolist())}
    ids = assign(first, second, shape, cells.numbers)
    assert ids.tolist() == [place.get(int(c), -1) if ok else -1 for c, ok in zip(number, valid, strict=True)]


def test_the_tally_of_sparse_cells_is_that_of_dense_ones():
    random = np.random.default_rng(0)
    p, y = random.random(500), random.integers(0, 2, 500).astype(float)
    rows = sort_rows(y, p, None, real=False)
    a, b = (random.integers(0, 3, 500).astype(np.int32) for _ in range(2))
    dense = tally(rows, a, b, (3, 3), find_cells(a, b, (3, 3), 1))
    wide = (3, 10_000_000)
    sparse = tally(rows, a, b, wide, find_cells(a, b, wide, 1))
    np.testing.assert_array_equal(dense.state, sparse.state)


@given(segmented())
def test_the_rows_of_a_level_are_listed_in_score_order(case):
    _, _, _, (codes, _, _) = case
    start, order = np.zeros(4, np.int32), np.empty(len(codes), np.int32)
    sums.group_rows(codes, start, order)
    for level in range(3):
        assert order[start[level] : start[level + 1]].tolist() == np.flatnonzero(codes == level).tolist()


@given(segmented(), st.integers(0, 3), st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_the_rows_of_a_segment_are_those_with_all_its_codes(case, depth, wanted):
    _, _, _, codes = case
    table = np.vstack(codes)
    order, start = np.empty_like(table), np.zeros((3, 4), np.int32)
    for c in range(3):
        sums.group_rows(table[c], start[c], order[c])
    columns = np.array([0, 1, 2][:depth] + [-1] * (3 - depth), np.int32)
    out = np.empty(table.shape[1], np.int32)
    first = np.array([0, 4, 8], np.int32)
    found = sums.rows_of(columns, np.array(wanted, np.int32), table, order, start.ravel(), first, out)
    expected = np.logical_and.reduce([np.ones(table.shape[1], bool), *(table[c] == wanted[c] for c in range(depth))])
    assert out[:found].tolist() == np.flatnonzero(expected).tolist()


def test_drawn_paths_are_those_of_each_draw():
    random = np.random.default_rng(1)
    p = random.choice([0.2, 0.4, 0.9], 60)
    order = np.argsort(p)
    p = p[order]
    ids = random.integers(0, 3, 60).astype(np.int32)
    step = np.unique(p, return_inverse=True)[1].astype(np.int32)
    y = random.integers(0, 2, (5, 60)).astype(float)
    span, rise = np.empty((5, 3)), np.empty((5, 3))
    sums.draw_paths(np.arange(60, dtype=np.int32), ids, step, y - p, span, rise, np.empty((3, 5)))
    for d in range(5):
        for k in range(3):
            own = ids == k
            assert span[d, k] == pytest.approx(twins.span(y[d, own], p[own]), abs=1e-12)
            assert rise[d, k] == pytest.approx(twins.rise(y[d, own], p[own]), abs=1e-12)


@given(segmented())
def test_the_bins_of_a_curve_keep_ties_together_and_lose_no_row(case):
    y, p, w, _ = case
    rows = sort_rows(y, p, w, real=False)
    n = len(p)
    total = np.array([n if w is None else w.sum()], float)
    out = np.zeros((1, 4, 6))
    sums.curve(
        np.arange(n, dtype=np.int32), rows.step, rows.e, rows.p, rows.w, total[0], 4, out[0], np.array([0.0, -1.0, 0.0])
    )
    np.testing.assert_allclose(out[0].sum(axis=0)[:2], [n, total[0]], rtol=1e-12)
    np.testing.assert_allclose(out[0, :, sums.CURVE_RESIDUAL].sum(), rows.e.sum(), atol=1e-12)
    # A bin ends only where the score changes: its rows are a whole number of tie groups.
    groups = np.cumsum(np.unique(p, return_counts=True)[1])
    assert set(np.cumsum(out[0, :, sums.CURVE_ROWS]).astype(int)) - {0} <= set(groups.tolist())
