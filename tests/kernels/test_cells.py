"""Sums by cells of the score: they add, and what they say of a path of all rows is true."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twins
from trueup.kernels import cells as kernel
from trueup.kernels.cells import CellTally
from trueup.kernels.tally import Cells, slots, sort_rows, tally

SEGMENTS = 3
MAPS = np.array([[0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]], np.int32)
SIZES = MAPS[:, -1] + 1
BEGINS = np.array([[0, 1, 2, 3, 4, 5], [0, 2, 4, 0, 0, 0], [0, 4, 0, 0, 0, 0]], np.int32)
EDGES = np.array([0.1, 0.2, 0.5, 0.6, 0.9])
RATIO = 2
FINER = np.sort(np.concatenate([EDGES, [0.05, 0.15, 0.35, 0.55, 0.7, 0.95]]))
LEVEL = np.array([0, 1, 2], np.int32)
FIRST = np.append(0, np.cumsum(SIZES[LEVEL])).astype(np.int64)
NONE = np.empty(0, np.int32), np.zeros(1, np.int64), np.empty((0, 4)), np.empty(0, np.uint8)


@st.composite
def parted(draw):
    """Draw rows with tied scores, weights or none, in segments and in parts."""
    n = draw(st.integers(1, 60))
    scores = st.sampled_from([0.0, 0.1, 0.12, 0.3, 0.31, 0.32, 0.5, 0.55, 0.7, 0.95, 1.0])
    p = np.array(draw(st.lists(scores, min_size=n, max_size=n)))
    y = np.array(draw(st.lists(st.sampled_from([0.0, 1.0, 0.25]), min_size=n, max_size=n)))
    weighted = draw(st.booleans())
    w = np.array(draw(st.lists(st.floats(0.1, 9), min_size=n, max_size=n))) if weighted else None
    segment = np.array(draw(st.lists(st.integers(-1, SEGMENTS - 1), min_size=n, max_size=n)), np.int32)
    part = np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    return y, p, w, segment, part


def place(p, edges=EDGES):
    return np.searchsorted(edges, p, side="right").astype(np.int32)


def summed(y, p, w, segment, keep):
    """Sum up the rows of a part."""
    rows = sort_rows(y[keep], p[keep], None if w is None else w[keep], real=False)
    out, code = CellTally.empty(SEGMENTS, int(FIRST[-1])), segment[keep][rows.order]
    last, step = np.full(SEGMENTS, -1, np.int64), np.full(SEGMENTS, -1, np.int32)
    kernel.advance(
        np.zeros(len(code), np.int32), code, SEGMENTS, slots(SEGMENTS, np.arange(SEGMENTS)), rows.step, rows.e, rows.p,
        rows.w if len(rows.w) else None, place(rows.p), MAPS, LEVEL, FIRST[:-1], out.state, out.weights,
        out.cells, out.parts, last, step,
    )  # fmt: skip
    kernel.close(out.cells, last)
    return out


def seen_again(y, p, w, segment, keep, chosen, starts, shift):
    """Sum up the rows of a part in pieces of the cells that are chosen."""
    rows = sort_rows(y[keep], p[keep], None if w is None else w[keep], real=False)
    out, code = CellTally.empty(0, int(starts[-1])), segment[keep][rows.order]
    last, step = np.full(SEGMENTS, -1, np.int64), np.full(SEGMENTS, -1, np.int32)
    kernel.advance_finer(
        np.zeros(len(code), np.int32), code, SEGMENTS, slots(SEGMENTS, np.arange(SEGMENTS)), rows.step, rows.e,
        place(rows.p, FINER), RATIO, MAPS, BEGINS, LEVEL, FIRST[:-1], shift, chosen, starts, out.cells, out.parts, last, step,
    )  # fmt: skip
    kernel.close(out.cells, last)
    return out


def single(p):
    """Say which cells of every level hold one score."""
    out = np.zeros((3, 6), bool)
    for level, cell in itertools.product(range(3), range(6)):
        out[level, cell] = len(np.unique(p[MAPS[level][place(p)] == cell])) == 1
    return out


def limits_of(found, alone, again=NONE):
    out = np.empty((SEGMENTS, 8))
    kernel.bound(FIRST, LEVEL, alone, found.cells, found.parts, *again, out)
    return out


def total(parts):
    found = parts[0]
    for one in parts[1:]:
        found = found + one
    return found


def exact_of(case, k):
    y, p, w, segment, _ = case
    some = segment == k
    own = None if w is None else w[some]
    path = twins.path(y[some], p[some], own)
    fall = max((path[i] - path[j] for i, j in itertools.combinations_with_replacement(range(len(path)), 2)))
    return twins.span(y[some], p[some], own), twins.rise(y[some], p[some], own), fall


@given(parted())
def test_a_cell_has_the_sum_the_ends_and_the_ascent_of_its_rows(case):
    y, p, w, segment, _ = case
    found = summed(*case[:4], np.ones(len(y), bool))
    for k in range(SEGMENTS):
        for cell in range(SIZES[LEVEL[k]]):
            some = (segment == k) & (MAPS[LEVEL[k]][place(p)] == cell)
            own = None if w is None else w[some]
            path = twins.path(y[some], p[some], own)
            expected = [path[-1], path.max(), path.min(), twins.rise(y[some], p[some], own)]
            np.testing.assert_allclose(found.cells[FIRST[k] + cell], expected, atol=1e-12)
            assert found.parts[FIRST[k] + cell] == some.any()
        some = segment == k
        weight = np.ones(some.sum()) if w is None else w[some]
        moments = twins.moments(p[some], weight)
        sums = [np.sum(weight * (y - p)[some]), np.sum(weight * p[some]), *moments]
        np.testing.assert_allclose(found.state[k], sums, atol=1e-11)
        if w is not None:
            np.testing.assert_allclose(found.weights[k], [weight.sum(), (weight**2).sum()], rtol=1e-12)


@given(parted())
def test_the_path_of_all_rows_lies_within_what_the_parts_say(case):
    _, p, _, _, part = case
    found = total([summed(*case[:4], part == at) for at in range(5)])
    limits = limits_of(found, single(p))
    for k in range(SEGMENTS):
        span, rise, fall = exact_of(case, k)
        assert limits[k, kernel.SPAN_FROM] - 1e-9 <= span <= limits[k, kernel.SPAN_TO] + 1e-9
        assert limits[k, kernel.RISE_FROM] - 1e-9 <= rise <= limits[k, kernel.RISE_TO] + 1e-9
        assert fall <= limits[k, kernel.FALL_TO] + 1e-9


@given(parted())
def test_one_part_loses_nothing(case):
    y, p, w, segment, _ = case
    limits = limits_of(summed(*case[:4], np.ones(len(y), bool)), single(p))
    rows = sort_rows(y, p, w, real=False)
    code = segment[rows.order]
    known = tally(rows, np.zeros_like(code), code, (1, SEGMENTS), Cells(np.arange(SEGMENTS), np.ones(SEGMENTS, np.int32)))
    assert (limits[:, kernel.EXACT] == 1).all()
    np.testing.assert_allclose(limits[:, kernel.SPAN_FROM], known.span, atol=1e-12)
    np.testing.assert_array_equal(limits[:, kernel.SPAN_FROM], limits[:, kernel.SPAN_TO])
    np.testing.assert_allclose(limits[:, kernel.RISE_TO], [exact_of(case, k)[1] for k in range(SEGMENTS)], atol=1e-12)


@given(parted())
def test_parts_that_are_ranges_of_the_score_lose_nothing(case):
    y, p, w, segment, _ = case
    part = np.searchsorted([0.2, 0.6], p, side="right")
    found = total([summed(y, p, w, segment, part == at) for at in range(3)])
    limits = limits_of(found, np.zeros((3, 6), bool))
    for k in (0, 1):  # no cell of theirs has scores of two parts
        assert limits[k, kernel.SPAN_FROM] == limits[k, kernel.SPAN_TO] == pytest.approx(exact_of(case, k)[0], abs=1e-12)
        assert limits[k, kernel.RISE_FROM] == limits[k, kernel.RISE_TO] == pytest.approx(exact_of(case, k)[1], abs=1e-12)


@given(parted())
def test_cells_of_one_score_lose_nothing_however_many_parts_there_are(case):
    y, p, w, segment, part = case
    p = np.array([0.0, 0.15, 0.3, 0.55, 0.7, 1.0])[place(p)]  # one a finest cell
    case = y, p, w, np.where(segment < 0, -1, 0).astype(np.int32), part
    limits = limits_of(total([summed(*case[:4], part == at) for at in range(5)]), single(p))
    assert limits[0, kernel.SPAN_FROM] == limits[0, kernel.SPAN_TO] == pytest.approx(exact_of(case, 0)[0], abs=1e-10)


@given(parted(), st.lists(st.booleans(), min_size=11, max_size=11), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_a_second_look_is_true_and_never_wider(case, chosen, shift):
    _, p, _, _, part = case
    found, alone = total([summed(*case[:4], part == at) for at in range(5)]), single(p)
    chosen, shift = np.array(chosen[: FIRST[-1]]), np.array(shift, np.int32)
    numbers = np.where(chosen, np.cumsum(chosen) - 1, -1).astype(np.int32)
    owner = np.repeat(np.arange(3), np.diff(FIRST))[chosen]
    cell = (np.arange(FIRST[-1]) - np.repeat(FIRST[:-1], np.diff(FIRST)))[chosen]
    finest = np.array([np.sum(MAPS[LEVEL[k]] == c) for k, c in zip(owner, cell, strict=True)], np.int64)
    starts = np.append(0, np.cumsum(((finest * RATIO - 1) >> shift[owner]) + 1)).astype(np.int64)
    again = total([seen_again(*case[:4], part == at, numbers, starts, shift) for at in range(5)])
    pieces, blind = (numbers, starts, again.cells, again.parts), np.zeros_like(alone)  # a piece knows of no single scores
    after, before, narrower = limits_of(found, alone, pieces), limits_of(found, blind), limits_of(found, blind, pieces)
    kernel.sharpen(np.flatnonzero(chosen), starts, again.cells, again.parts, found.cells, found.parts)
    sharper, narrow = limits_of(found, alone), limits_of(found, blind)
    for k in range(SEGMENTS):
        span, rise, fall = exact_of(case, k)
        assert sharper[k, kernel.SPAN_FROM] - 1e-9 <= span <= sharper[k, kernel.SPAN_TO] + 1e-9
        assert sharper[k, kernel.RISE_FROM] - 1e-9 <= rise <= sharper[k, kernel.RISE_TO] + 1e-9
        assert fall <= min(after[k, kernel.FALL_TO], sharper[k, kernel.FALL_TO]) + 1e-9
        assert after[k, kernel.SPAN_FROM] - 1e-9 <= span <= after[k, kernel.SPAN_TO] + 1e-9
        assert after[k, kernel.RISE_FROM] - 1e-9 <= rise <= after[k, kernel.RISE_TO] + 1e-9
        assert narrow[k, kernel.SPAN_TO] <= before[k, kernel.SPAN_TO] + 1e-9
        assert narrower[k, kernel.SPAN_FROM] >= before[k, kernel.SPAN_FROM] - 1e-9
        assert narrower[k, kernel.SPAN_TO] <= before[k, kernel.SPAN_TO] + 1e-9


@given(parted(), st.permutations(range(5)))
def test_parts_add_in_any_order(case, order):
    parts = [summed(*case[:4], case[4] == at) for at in range(5)]
    one = total(parts)
    other = (parts[order[0]] + parts[order[1]]) + (parts[order[2]] + (parts[order[3]] + parts[order[4]]))
    for name in ("state", "weights", "cells", "parts"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), atol=1e-10)


def test_the_cells_that_are_chosen_are_those_that_may_hold_an_end():
    # Two parts: up in the first cell, where they interleave, and then far down.
    y, p = np.array([1.0, 0, 1, 0, 0, 0, 0, 0]), np.array([0.01, 0.02, 0.03, 0.04, 0.7, 0.8, 0.85, 0.86])
    segment, part = np.zeros(8, np.int32), np.array([0, 1, 0, 1, 0, 1, 0, 1])
    found, alone = total([summed(y, p, None, segment, part == at) for at in range(2)]), single(p)
    limits, out = limits_of(found, alone), np.zeros(FIRST[-1], bool)
    kernel.choose(FIRST, LEVEL, alone, found.cells, found.parts, limits, np.ones(3, bool), out)
    assert np.flatnonzero(out).tolist() == [0]
    assert limits[0, kernel.EXACT] == 0
    nobody = np.zeros_like(out)
    kernel.choose(FIRST, LEVEL, alone, found.cells, found.parts, limits, np.zeros(3, bool), nobody)
    assert not nobody.any()


@pytest.mark.parametrize("size", [12, 400])
def test_empty_cells_are_left_behind_on_the_way(size):
    found = CellTally.empty(2, size)
    found.cells[[3, 7]], found.parts[[3, 7]] = [[1, 2, -1, 3], [4, 4, 0, 4]], 1
    packed = pickle.dumps(found)
    again = pickle.loads(packed)
    for name in ("state", "weights", "cells", "parts"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert len(packed) < 2_000


def test_bins_of_a_curve_end_where_cells_do():
    first, cells, out = np.array([0, 4]), np.zeros((4, 6)), np.zeros((1, 10, 6))
    cells[:, 0] = cells[:, 1] = [10, 30, 20, 40]
    kernel.spread_curves(first, cells, np.array([100.0]), np.array([4], np.int32), out)
    assert out[0, :4, 0].tolist() == [40, 20, 40, 0]  # begun at 0 and 0.1, 0.4, 0.6 of the weight
    assert not out[0, 4:].any()


def test_rows_of_a_segment_are_gathered_by_cell():
    rows = sort_rows(np.array([1.0, 0, 1]), np.array([0.3, 0.1, 0.2]), np.array([2.0, 1, 3]), real=False)
    out = np.zeros((2, 6))
    kernel.gather(np.array([0, 2], np.int32), np.array([0, 0, 1], np.int32), rows.e, rows.p, rows.w, out)
    np.testing.assert_allclose(out[0], [1, 1, 1, 0.1, -0.1, 0.01])
    np.testing.assert_allclose(out[1], [1, 2, 4, 0.6, 1.4, 1.96])
