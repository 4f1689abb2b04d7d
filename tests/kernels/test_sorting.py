"""Order statistics and bins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.kernels import sorting


@pytest.mark.parametrize("shape", ["normal", "skewed", "few", "spike", "huge", "infinite"])
def test_order_statistics_are_those_of_a_sort(shape):
    random = np.random.default_rng(3)
    values = random.normal(size=60_000)
    values = {
        "normal": values,
        "skewed": np.exp(4 * values),
        "few": np.round(values),
        "spike": np.where(values > 1, values, 0.0),
        "huge": values * 1e307,
        "infinite": np.where(values > 3, np.inf, values),
    }[shape]
    ranks = np.array([0, 1, 5_999, 30_000, 59_999])
    assert sorting.order_statistics(values, ranks).tolist() == np.sort(values)[ranks].tolist()


@given(
    st.lists(st.floats(-10, 10) | st.just(float("nan")), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_digitize_counts_the_edges_not_above_a_value(values, count):
    edges = np.linspace(-5, 5, count)
    out = np.empty(len(values), np.int32)
    sorting.digitize(np.array(values), edges, out)
    assert out.tolist() == [int(np.sum(edges <= v)) for v in values]
