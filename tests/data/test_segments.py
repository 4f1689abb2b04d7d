"""Columns become segments with labels, and combinations within a budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.data.bins import check_bins, plan_combinations, segment_column
from trueup.data.frame import read
from trueup.errors import ArgumentError


def _column(values, bins=10, **roles):
    n = len(values)
    table = read(
        {"p": np.full(n, 0.5), "y": [0, 1] * (n // 2) + [0] * (n % 2), "v": values}, outcome="y", prediction="p", **roles
    )
    return segment_column(table, table.schema.features[0], check_bins(table.columns, bins))


def _texts(column):
    return [column.labels[code] for code in column.codes]


def test_texts_become_levels_and_missing_is_a_level_of_its_own():
    assert _texts(_column(["b", None, "a", "b"])) == ["v=b", "v is missing", "v=a", "v=b"]


def test_a_level_named_missing_is_not_the_missing_level():
    assert _texts(_column(["is missing", None, "a"])) == ["v=is missing", "v is missing", "v=a"]


def test_a_number_with_few_distinct_values_has_a_segment_per_value():
    assert _texts(_column([3.0, np.nan, 0.5, 3.0])) == ["v=3", "v is missing", "v=0.5", "v=3"]


def test_given_edges_are_closed_on_the_left():
    column = _column([17.9, 18.0, 29.9, 30.0, 99.0], {"v": [18, 30]})
    assert _texts(column) == ["v<18", "v=[18, 30)", "v=[18, 30)", "v>=30", "v>=30"]


def test_bins_of_integers_are_named_by_their_values():
    column = _column([17, 18, 29, np.nan, 30, 31], {"v": [18, 30, 31]})
    assert _texts(column) == ["v<18", "v=18 to 29", "v=18 to 29", "v is missing", "v=30", "v>=31"]
    assert _column([17, 18, 29], {"v": [17.5, 30]}).labels == ("v<17.5", "v=[17.5, 30)", "v>=30")
    assert _column([0.0, 1e16, 3e16], {"v": [1e16, 2e16]}).labels[1] == "v=[1e+16, 2e+16)"


def test_quantile_bins_have_about_equal_numbers_of_rows_and_short_labels():
    column = _column(np.random.default_rng(0).normal(40, 12, 10_000))
    counts = np.bincount(column.codes)
    assert len(counts) == 10
    # Edges are moved by at most 5% of the gap to a neighbour to make them short.
    assert counts.min() > 880
    assert counts.max() < 1120
    assert max(len(label) for label in column.labels) <= len("v=[30.1, 33.5)")


def test_quantile_bins_do_not_depend_on_the_order_of_the_rows():
    random = np.random.default_rng(1)
    values = np.exp(random.normal(0, 3, 70_000))
    shuffled = random.permutation(len(values))
    first, second = _column(values), _column(values[shuffled])
    assert first.labels == second.labels
    np.testing.assert_array_equal(first.codes[shuffled], second.codes)


@given(st.lists(st.floats(allow_nan=False, width=32) | st.just(float("inf")), min_size=12, max_size=60), st.integers(1, 12))
@pytest.mark.filterwarnings("ignore::trueup.errors.InfiniteValueWarning")
def test_every_value_lies_in_the_interval_of_its_label(values, bins):
    column = _column(np.array(values, float), bins)
    assert len(column.codes) == len(values)
    for value, label in zip(values, _texts(column), strict=True):
        assert _contains(label, value), (label, value)


def test_a_very_frequent_value_has_a_bin_of_its_own():
    rest = np.arange(1, 101, dtype=float) * 50
    column = _column(np.append(np.zeros(900), rest), 5)
    assert column.labels[0] == "v<1"
    assert (column.codes[:900] == 0).all()
    counts = np.bincount(column.codes[900:], minlength=5)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:], 25, atol=2)  # edges are at round numbers


def _contains(label, value):
    if label == "v=any":
        return True
    if label.startswith("v="):
        text = label[2:]
        if not text.startswith("["):
            return float(text) == value
        low, high = text[1:-1].split(", ")
        return float(low) <= value < float(high)
    return value < float(label[2:]) if label.startswith("v<") else value >= float(label[3:])


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("quarter", ["2023Q4", "2024Q1", "2024Q2"]),
        ("year", ["2023", "2024", "2024"]),
        ("month", ["2023-12", "2024-01", "2024-04"]),
        ("week", ["2023-12-25 to 2023-12-31", "2024-01-01 to 2024-01-07", "2024-04-01 to 2024-04-07"]),
        ("day", ["2023-12-31", "2024-01-01", "2024-04-07"]),
    ],
)
def test_dates_are_binned_by_calendar_period(unit, expected):
    dates = np.array(["2023-12-31", "2024-01-01", "2024-04-07", "NaT"], "datetime64[D]")
    column = _column(dates, {"v": unit})
    assert _texts(column) == [*(f"v={text}" for text in expected), "v is missing"]


def test_dates_before_the_epoch_fall_into_their_own_quarter():
    column = _column(np.array(["1969-12-31", "1970-01-01"], "datetime64[D]"), {"v": "quarter"})
    assert _texts(column) == ["v=1969Q4", "v=1970Q1"]


@pytest.mark.parametrize(
    ("last", "first_text", "last_text"),
    [
        ("2024-01-21", "2024-01-01", "2024-01-21"),
        ("2024-01-22", "2024-01-01 to 2024-01-07", "2024-01-22 to 2024-01-28"),
        ("2024-05-19", "2024-01-01 to 2024-01-07", "2024-05-13 to 2024-05-19"),
        ("2024-05-20", "2024-01", "2024-05"),
        ("2025-07-03", "2024-01", "2025-07"),
        ("2025-07-04", "2024Q1", "2025Q3"),
        ("2032-01-06", "2024Q1", "2032Q1"),
        ("2032-01-07", "2024", "2032"),
    ],
)
def test_the_default_calendar_period_depends_on_the_span(last, first_text, last_text):
    column = _column(np.array(["2024-01-01", last, "NaT"], "datetime64[D]"))
    assert _texts(column) == [f"v={first_text}", f"v={last_text}", "v is missing"]


def test_dates_can_be_binned_at_given_days():
    dates = np.array(["2023-12-31", "2024-01-01", "2024-06-01"], "datetime64[D]")
    assert _texts(_column(dates, {"v": ["2024-01-01", "2024-03-01"]})) == [
        "v<2024-01-01",
        "v=[2024-01-01, 2024-03-01)",
        "v>=2024-03-01",
    ]
    with pytest.raises(ArgumentError, match="ascending dates, or one of year"):
        _column(dates, {"v": ["soon"]})
    with pytest.raises(ArgumentError, match=r"bins\['v'\] must be one of"):
        _column(dates, {"v": "fortnight"})


def test_quantile_bins_of_dates_are_labelled_by_dates():
    days = np.array(["2024-01-01", "2024-02-01"], "datetime64[D]")
    assert _texts(_column(days, {"v": 5})) == ["v=2024-01-01", "v=2024-02-01"]
    times = np.array(["2024-01-01T03", "2024-01-01T09", "2024-01-01T15"], "datetime64[s]")
    edges = ["2024-01-01T06", "2024-01-01T12"]
    assert _texts(_column(times, {"v": edges}))[1] == "v=[2024-01-01T06:00:00, 2024-01-01T12:00:00)"


def test_a_column_of_missing_values_has_one_segment():
    assert _column([np.nan] * 4).labels == ("v is missing",)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 3), st.integers(1, 400))
def test_the_plan_stays_within_its_budget_and_drops_the_deepest_combinations_first(levels, depth, budget):
    full, none = plan_combinations(
        dict(zip("abcdefgh", levels, strict=False)), 10_000, depth=depth, min_rows=10, max_cells=10**9
    )
    assert not none
    kept, dropped = plan_combinations(
        dict(zip("abcdefgh", levels, strict=False)), 10_000, depth=depth, min_rows=10, max_cells=budget
    )
    assert sorted([*kept, *dropped]) == sorted(full)
    cost = sum(levels) + sum(min(np.prod([levels[c] for c in combination]), 1000) for combination in kept)
    assert cost <= budget or not kept
    if dropped and kept:
        assert min(map(len, dropped)) >= max(map(len, kept))
