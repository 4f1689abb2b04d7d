"""Validation rows that are training rows: refused, unless they are copies by chance."""

import numpy as np
import pytest

import trueup as tu
from trueup.errors import ArgumentError


def rows(n, seed, digits=None):
    data = tu.simulate.lending(n, seed=seed)
    data = {name: np.asarray(data[name]) for name in ("prediction", "region", "age", "outcome")}
    if digits is not None:
        data["prediction"] = np.round(data["prediction"], digits).clip(0.01, 0.99)
    return data


def take(data, index):
    return {name: column[index] for name, column in data.items()}


def fit(data, held, features=("region", "age"), weight=None, held_weight=None):
    rule = tu.Validation(held, held["outcome"], held_weight)
    fix = tu.Logistic("prediction", list(features), stopping=rule)
    return fix.fit(data, data["outcome"], sample_weight=weight)


@pytest.mark.parametrize("index", [slice(None), slice(0, 300), np.random.default_rng(0).permutation(2000)])
def test_training_rows_are_refused_as_validation_rows(index):
    data = rows(2000, 0)
    held = take(data, index)
    count = len(held["outcome"])
    with pytest.raises(ArgumentError, match=f"{count:,} of {count:,} validation rows are training rows") as error:
        fit(data, held)
    assert error.value.parameter == "stopping"
    assert "cross-validation" in str(error.value.hint)


def test_a_fifth_of_training_rows_among_validation_rows_is_refused():
    data, other = rows(2000, 0), rows(2000, 1)
    mixed = {name: np.concatenate([other[name][:400], data[name][:100]]) for name in data}
    with pytest.raises(ArgumentError, match="100 of 500 validation rows"):
        fit(data, mixed)
    few = {name: np.concatenate([other[name], data[name][:100]]) for name in data}
    assert fit(data, few).history_.evaluated_on == "given rows"


def test_chance_copies_of_discrete_rows_are_no_training_rows():
    data, other = rows(2000, 0, digits=2), rows(2000, 1, digits=2)
    assert fit(data, other, ["region"]).history_.evaluated_on == "given rows"
    few, more = take(data, slice(0, 60)), take(other, slice(0, 60))
    assert fit(few, more, ["region"]).history_.evaluated_on == "given rows"


def test_cells_with_counts_are_chance_copies():
    cells = {"prediction": np.repeat(np.arange(1, 51) / 100, 2), "outcome": np.tile([0.0, 1.0], 50)}
    counts = np.random.default_rng(0).integers(2, 40, (2, 100)).astype(float)
    assert fit(cells, cells, [], counts[0], counts[1]).history_.evaluated_on == "given rows"
