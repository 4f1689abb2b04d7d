from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.errors import ArgumentError, DataError
from trueup.metrics.inputs import validate_points
from trueup.metrics.local import FeatureMap, fit_features


def mean_distance(phi, w=None):
    """Return the mean over all ordered pairs, including each row with itself."""
    w = np.ones(len(phi)) if w is None else w
    far = np.abs(phi[:, None] - phi[None]).mean(axis=2)
    return w @ far @ w / w.sum() ** 2


@pytest.fixture(name="X")
def table():
    random = np.random.default_rng(0)
    return random.normal(size=(60, 5)) @ random.normal(size=(5, 5)) * [1, 10, 0.1, 1, 100] + [0, 5, 1, 0, -3]


def test_mean_distance_of_two_random_rows_is_one(X):
    w = np.random.default_rng(1).integers(1, 4, 60).astype(float)
    for scaling in ("deviation", "range", "none"):
        for components in (None, 3):
            fitted = fit_features(X, components=components, scaling=scaling, weight=w)
            assert mean_distance(fitted.transform(X), w) == pytest.approx(1, rel=1e-12)


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5, -3.0]), min_size=2, max_size=12))
def test_unit_is_exact_with_ties_and_one_for_equal_rows(values):
    fitted = fit_features(values, scaling="none")
    plain = mean_distance(np.array(values)[:, None])
    assert fitted.unit == (1 if plain == 0 else pytest.approx(1 / plain, rel=1e-12))


def test_equal_weights_and_none_give_the_same_unit(X):
    for w in (np.full(60, 0.3), np.r_[np.ones(59), 1 + 1e-15]):
        assert fit_features(X, weight=w).unit == pytest.approx(fit_features(X).unit, rel=1e-12)


def test_worked_example():
    fitted = fit_features([[0.0, 7.0], [4.0, 7.0]], scaling="range")
    # Ranges 4 and none; half of the pairs differ, by 1 in one of two columns: mean 1/4.
    assert fitted.scale.tolist() == [4, 1]
    assert fitted.unit == 4
    assert fitted.transform([[2.0, 7.0], [6.0, 7.0]]).tolist() == [[0, 0], [4, 0]]


def test_scaling_divides_by_deviation_or_range_and_makes_units_not_matter(X):
    for scaling, width in (("deviation", X.std(axis=0)), ("range", np.ptp(X, axis=0))):
        fitted = fit_features(X, scaling=scaling)
        np.testing.assert_allclose(fitted.scale, width, rtol=1e-12)
        other = fit_features(X * [1, 1000, 0.5, 3, 1], scaling=scaling)
        np.testing.assert_allclose(
            other.transform(X * [1, 1000, 0.5, 3, 1]), fitted.transform(X), rtol=1e-9, atol=1e-9 * np.abs(X).max()
        )


def test_without_scaling_components_or_unit_the_points_are_the_rows_to_the_last_bit(X):
    np.testing.assert_array_equal(fit_features(X, scaling="none", unit=False).transform(X), X)


def test_a_constant_column_contributes_nothing():
    X = np.column_stack([[0.1] * 7, np.arange(7)])
    for components in (None, 1):
        fitted = fit_features(X, components=components)
        assert fitted.scale[0] == 1
        phi = fitted.transform(X)
        assert np.ptp(phi, axis=0)[-1] > 1
    fitted = fit_features(X, weight=[0.1, 0.3, 0.7, 1.1, 0.9, 0.2, 0.6])
    assert fitted.center[0] == 0.1  # a weighted mean would have a rounding error
    assert (fitted.transform(X)[:, 0] == 0).all()


def test_huge_and_tiny_values_neither_overflow_nor_underflow():
    for size in (1e-90, 1e90):
        fitted = fit_features(np.array([0.0, 1.0, 3.0]) * size)
        assert mean_distance(fitted.transform(np.array([0.0, 1.0, 3.0]) * size)) == pytest.approx(1)


def test_components_are_principal_components(X):
    fitted = fit_features(X, components=5, scaling="none", unit=False)
    phi = fitted.transform(X)
    variance = np.cov(phi.T, bias=True)
    values = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1]
    np.testing.assert_allclose(np.diag(variance), values, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(variance - np.diag(np.diag(variance)), 0, atol=1e-8 * values[0])
    np.testing.assert_allclose(fitted.rotation.T @ fitted.rotation, np.eye(5), atol=1e-12)
    assert (fitted.rotation[np.abs(fitted.rotation).argmax(axis=0), range(5)] > 0).all()


def test_more_columns_than_rows_keep_distances():
    X = np.random.default_rng(2).normal(size=(6, 20))
    phi = fit_features(X, components=6, scaling="none", unit=False).transform(X)
    np.testing.assert_allclose(
        ((phi[:, None] - phi[None]) ** 2).sum(axis=2), ((X[:, None] - X[None]) ** 2).sum(axis=2), rtol=1e-10, atol=1e-12
    )


def same(a, b):
    for one, other in ((a.center, b.center), (a.scale, b.scale), (a.rotation, b.rotation), (a.unit, b.unit)):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("scaling", ["deviation", "range", "none"])
def test_weights_count_rows_and_their_scale_does_not_matter(X, scaling):
    w = np.random.default_rng(3).integers(0, 3, 60).astype(float)
    fitted = fit_features(X, components=3, scaling=scaling, weight=w)
    same(fitted, fit_features(np.repeat(X, w.astype(int), axis=0), components=3, scaling=scaling))
    same(fitted, fit_features(X, components=3, scaling=scaling, weight=w * 1e-200))
    order = np.random.default_rng(4).permutation(60)
    same(fitted, fit_features(X[order], components=3, scaling=scaling, weight=w[order]))


@pytest.mark.parametrize("components", [None, 4])
def test_points_do_not_depend_on_other_rows(components):
    X = np.random.default_rng(5).normal(size=(5000, 33))
    fitted = fit_features(X[:200], components=components)
    whole = fitted.transform(X)
    for rows in (slice(0, 1), slice(4090, 4099), slice(17, 4999)):
        np.testing.assert_array_equal(fitted.transform(X[rows]), whole[rows])
    assert fitted.transform(X[:0]).shape == (0, fitted.dimensions)
    np.testing.assert_array_equal(fitted.transform(np.asfortranarray(X)), whole)


def test_inputs_are_not_modified_and_the_map_is_frozen(X):
    before = X.copy()
    fitted = fit_features(X, scaling="none", unit=False)
    fitted.transform(X)[:] = 0
    np.testing.assert_array_equal(X, before)
    assert isinstance(fitted, FeatureMap)
    with pytest.raises(FrozenInstanceError):
        fitted.unit = 2.0
    assert repr(fit_features(X, components=1)).startswith("<FeatureMap to 1 principal component of 5 columns, times ")


@pytest.mark.parametrize(
    ("X", "options", "error", "message"),
    [
        ([[1.0, np.nan]], {}, DataError, "X must be finite; got nan at row 0 \\(1 such row\\)"),
        ([[1.0], [np.inf]], {}, DataError, "must be finite; got inf at row 1"),
        ([[1e101]], {}, DataError, "within 1e\\+100 of 0"),
        ([["a"], ["b"]], {}, DataError, "must hold numbers; got <U1 such as np.str_\\('a'\\)"),
        (np.array([["1"], [2]], object), {}, DataError, "must hold numbers; got object"),
        (np.array([[{}], [2]], object), {}, DataError, "must hold numbers"),
        (np.array([1, 2], "datetime64[D]"), {}, DataError, "must hold numbers; got datetime64"),
        ([[1j]], {}, DataError, "must hold numbers; got complex128"),
        (np.zeros((2, 2, 2)), {}, DataError, "shape \\(n, d\\)"),
        (np.zeros((2, 0)), {}, DataError, "shape \\(n, d\\)"),
        (3.0, {}, DataError, "shape \\(n, d\\)"),
        (np.zeros((0, 2)), {}, DataError, "no rows"),
        ([[1.0], [1.0, 2.0]], {}, DataError, "X must hold rows of equal length"),
        ([1.0, 2.0], {"scaling": "whiten"}, ArgumentError, "scaling must be one of"),
        ([1.0, 2.0], {"components": 2}, ArgumentError, "from 1 to 1; got 2"),
        ([1.0, 2.0], {"components": 0}, ArgumentError, "from 1 to 1"),
        ([1.0, 2.0], {"components": True}, ArgumentError, "from 1 to 1"),
        ([[1.0, 2.0]], {"components": 2}, ArgumentError, "from 1 to 1"),
        ([1.0, 2.0], {"weight": [1]}, DataError, "equal length; got 2 and 1"),
        ([1.0, 2.0], {"weight": [1, -1]}, DataError, "not be negative; got -1 at row 1"),
        ([1.0, 2.0], {"weight": [0, 0]}, DataError, "all zero"),
        ([1.0, 2.0], {"weight": [1, np.nan]}, DataError, "weight must be finite"),
    ],
)
def test_invalid_arguments_are_rejected(X, options, error, message):
    with pytest.raises(error, match=message):
        fit_features(X, **options)


def test_other_columns_than_in_fit_are_rejected():
    with pytest.raises(DataError, match="must have the 2 columns of the fit; got 1"):
        fit_features([[1.0, 2.0], [2.0, 2.0]]).transform([1.0, 2.0])


def test_integers_booleans_and_objects_are_points():
    for values in ([1, 0], [True, False], np.array([1, 0], object), np.array([1, 0], np.float32)):
        assert validate_points(values, "phi").tolist() == [[1.0], [0.0]]
