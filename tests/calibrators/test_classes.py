"""Logits, bare arrays of several classes, small probabilities, and matrix scaling against a plain minimisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, special
from sklearn.base import clone

import trueup as tu
from trueup.calibrators.floors import EPS, TINY, find_floors
from trueup.calibrators.matrix.estimator import _default_strengths, _Scaling, _strengths, _StrengthSearch
from trueup.calibrators.stopping import Split
from trueup.data.table import Schema, Table
from trueup.errors import ArgumentError, ColumnError, DataError


def draw(n, classes, seed=0, scale=2.0, shift=0.0):
    """Draw logits that are too steep by ``scale``, and outcomes."""
    random = np.random.default_rng(seed)
    Z = scale * random.normal(size=(n, classes))
    y = np.argmax(Z / scale + shift + random.gumbel(size=Z.shape), axis=1)
    return Z, y


def mean_loss(P, y):
    return float(-np.log(P[np.arange(len(y)), y]).mean())


def _table(Z, y):
    names = tuple(f"p{number}" for number in range(Z.shape[1]))
    schema = Schema("multiclass", "y", names, None, (), classes=names)
    return Table(schema, {}, special.softmax(Z, axis=1), y.astype(float))


@pytest.mark.parametrize(
    "make",
    [
        tu.Temperature,
        tu.Platt,
        tu.Beta,
        tu.Isotonic,
        tu.Histogram,
        tu.MatrixScaling,
        lambda **more: tu.MCGrad(stopping=None, rounds=1, trees=5, threads=1, **more),
        lambda **more: tu.Auto(methods=["temperature"], folds=2, **more),
    ],
)
def test_logits_and_their_probabilities_give_the_same_model(make):
    Z, y = draw(400, 3)
    P = special.softmax(Z, axis=1)
    by_logits, by_probabilities = make(logits=True).fit(Z, y), make().fit(P, y)
    np.testing.assert_allclose(by_logits.predict(Z), by_probabilities.predict(P), rtol=1e-9)
    names = by_logits.model_.schema.prediction
    one = by_logits.model_.predict_one(dict(zip(names, Z[0], strict=True)))
    np.testing.assert_allclose(one, by_logits.predict(Z[:1])[0], rtol=1e-12)


def test_a_column_of_logits_is_read_by_a_sigmoid():
    random = np.random.default_rng(1)
    z = 2 * random.normal(size=500)
    y = random.random(500) < special.expit(z / 2)
    fix = tu.Platt("z", logits=True).fit({"z": z}, y)
    other = tu.Platt("p").fit({"p": special.expit(z)}, y)
    np.testing.assert_allclose(fix.predict({"z": z}), other.predict({"p": special.expit(z)}), rtol=1e-9)


def test_invalid_logits_are_rejected_or_nan(recwarn):
    Z, y = draw(200, 3)
    fix = tu.Temperature(logits=True).fit(Z, y)
    Z[1, 2] = np.nan
    with pytest.raises(DataError, match="at row 1"):
        fix.predict(Z)
    P = fix.predict(Z, on_error="nan")
    assert np.isnan(P[1]).all()
    np.testing.assert_array_equal(P[0], fix.predict(Z[:1])[0])
    assert [type(warning.message).__name__ for warning in recwarn] == ["InvalidScoreWarning"]
    with pytest.raises(DataError, match="hold probabilities"):
        tu.Temperature(logits=True).fit(special.softmax(draw(200, 3)[0], axis=1), y)
    with pytest.raises(ArgumentError, match="has none"):
        tu.Platt(logits=True, task="regression").fit(np.arange(20.0), np.arange(20.0))
    with pytest.raises(ArgumentError, match="logits must be True or False; got 'yes'"):
        tu.Temperature(logits="yes").fit(Z, y)


def test_small_probabilities_are_not_clipped():
    Z, y = draw(3000, 10, scale=30.0)
    P = special.softmax(Z, axis=1)
    fix = tu.Temperature().fit(P, y)

    def loss(factor):
        return mean_loss(special.softmax(factor * Z, axis=1), y)

    best = optimize.minimize_scalar(loss, bounds=(0.01, 1), method="bounded", options={"xatol": 1e-10})
    assert 1 / fix.temperature_ == pytest.approx(best.x, rel=2e-2)  # one pseudo-row at no change
    assert mean_loss(fix.predict(P), y) == pytest.approx(best.fun, rel=1e-3)


def test_floors_move_exact_zeros_only():
    assert find_floors(np.array([0.2, 1e-9])) == (EPS, EPS)
    assert find_floors(np.array([0.2, 0.0, 1e-9])) == (1e-9, EPS)
    assert find_floors(np.array([0.2, 0.0, 1.0])) == (1e-6, 1e-6)
    assert find_floors(np.array([[0.2, 0.8], [1e-200, 1.0]]))[0] == TINY


def test_matrix_scaling_minimises_its_penalised_loss():
    Z, y = draw(300, 3, shift=np.array([0.5, 0.0, -0.5]))
    P = special.softmax(Z, axis=1)
    fix = tu.MatrixScaling(structure="low-rank", strength=20.0).fit(P, y)
    target = np.eye(3)[y] + P / len(y)  # one pseudo-row at no change

    def loss(G):
        return -(target * (G - special.logsumexp(G, axis=1, keepdims=True))).sum()

    factor = optimize.minimize_scalar(lambda factor: loss(factor * Z), bounds=(0.01, 3), options={"xatol": 1e-12}).x
    share = 1 / (1 + target.sum())  # of equal probabilities: one more row
    z = np.log((1 - share) * special.softmax(factor * Z, axis=1) + share / 3)
    x = z / math.sqrt((z**2).mean())

    def objective(theta):
        factor, b, v, A = theta[0], theta[1:4], theta[4:7], theta[7:].reshape(3, 3)
        return loss(factor * z + b + v * x + x @ A.T) + 10.0 * (theta[1:] ** 2).sum()

    start = np.zeros(16)
    start[0] = 1.0
    best = optimize.minimize(objective, start, method="BFGS", options={"gtol": 1e-7}).x
    G = best[0] * z + best[1:4] + best[4:7] * x + x @ best[7:].reshape(3, 3).T
    np.testing.assert_allclose(fix.predict(P), special.softmax(G, axis=1), atol=1e-6)
    np.testing.assert_allclose(fix.predict(P), special.softmax(z @ fix.matrix_.T + fix.intercept_, axis=1), rtol=1e-6)


def test_matrix_scaling_corrects_sure_and_unsure_rows_differently():
    random = np.random.default_rng(5)
    Z = random.normal(size=(4000, 4)) * random.choice([1.0, 4.0], (4000, 1))
    log_p = special.log_softmax(Z, axis=1)
    # The bias of the first and of the last class grows with how sure the scores are: no function of centred logits.
    true = special.softmax(log_p + 0.4 * log_p.mean(axis=1, keepdims=True) * [1, 0, 0, -1], axis=1)
    y = np.argmax(np.log(true) + random.gumbel(size=Z.shape), axis=1)
    train, test = slice(0, 2000), slice(2000, None)
    matrix, temperature = (
        mean_loss(kind(logits=True).fit(Z[train], y[train]).predict(Z[test]), y[test])
        for kind in (tu.MatrixScaling, tu.Temperature)
    )
    best = mean_loss(true[test], y[test])
    assert matrix - best < 0.05 * (temperature - best)


def test_strengths_are_the_default_unless_others_are_better_beyond_noise():
    Z, y = draw(1500, 4, shift=np.array([1.0, 0.0, 0.0, -1.0]))
    rows = _Scaling.of(_table(Z, y), 4).scale(_table(Z, y))
    assert _default_strengths(rows) == (8 / rows.spread, 24 / rows.spread**2)
    index = np.arange(len(y))
    splits = [Split(index % 5, fold) for fold in range(5)]
    search = _StrengthSearch(rows, splits)
    # The losses of 10 and of 9.9 differ by less than a standard error, those of 10 and of a million do not.
    assert search.run((math.inf, 10.0), lambda strength: _strengths(strength, math.inf, 4), 9.9) == 9.9
    search = _StrengthSearch(rows, splits)
    assert search.run((math.inf, 10.0), lambda strength: _strengths(strength, math.inf, 4), 1e6) == 10.0


def test_scores_in_the_wrong_order_are_turned_round():
    Z, y = draw(800, 3)
    fix = tu.MatrixScaling(logits=True).fit(-Z, y)
    assert mean_loss(fix.predict(-Z), y) == pytest.approx(
        mean_loss(tu.MatrixScaling(logits=True).fit(Z, y).predict(Z), y), abs=0.01
    )


def test_infinite_strength_is_temperature_scaling_and_chosen_strength_is_no_worse():
    Z, y = draw(1500, 5, scale=3.0)
    P = special.softmax(Z, axis=1)
    plain = tu.Temperature().fit(P, y)
    np.testing.assert_allclose(tu.MatrixScaling(strength=math.inf).fit(P, y).predict(P), plain.predict(P), rtol=1e-6)
    new, outcome = draw(20_000, 5, seed=1, scale=3.0)
    Q = special.softmax(new, axis=1)
    # Nothing but the temperature is wrong: the estimated matrix costs little.
    assert mean_loss(tu.MatrixScaling().fit(P, y).predict(Q), outcome) < mean_loss(plain.predict(Q), outcome) + 0.002


def test_logits_that_are_far_too_large_are_shrunk():
    random = np.random.default_rng(3)
    Z, y = 1e3 * random.normal(size=(400, 3)), random.integers(0, 3, 400)  # certain, and unrelated to the outcome
    P = tu.MatrixScaling(logits=True).fit(Z, y).predict(Z)
    assert mean_loss(P, y) < math.log(3) + 0.01


def test_matrix_scaling_corrects_classes_that_differ():
    shift = np.array([1.0, 0.0, 0.0, 0.0, -1.0])
    Z, y = draw(1500, 5, shift=shift)
    new, outcome = draw(20_000, 5, seed=1, shift=shift)
    P, Q = special.softmax(Z, axis=1), special.softmax(new, axis=1)
    best = mean_loss(special.softmax(new / 2 + shift, axis=1), outcome)
    matrix, temperature = (mean_loss(kind().fit(P, y).predict(Q), outcome) for kind in (tu.MatrixScaling, tu.Temperature))
    assert matrix - best < 0.1 * (temperature - best)


def test_structure_decides_whether_there_is_a_matrix_of_low_rank():
    Z, y = draw(600, 4, scale=3.0)  # nothing but the temperature is wrong
    ranks = {
        structure: tu.MatrixScaling(logits=True, structure=structure).fit(Z, y).model_.map.left.shape[1]
        for structure in ("auto", "diagonal", "low-rank")
    }
    assert ranks == {"auto": 0, "diagonal": 0, "low-rank": 4}


def test_auto_searches_the_strengths_of_matrix_scaling_once_and_needs_no_features(monkeypatch):
    Z, y = draw(900, 4, shift=np.array([1.0, 0.0, 0.0, -1.0]))
    names = [f"z{number}" for number in range(4)]
    data = dict(zip(names, Z.T, strict=True)) | {"age": np.arange(900.0) % 7}
    searches, own = [], tu.MatrixScaling._choose_strengths
    monkeypatch.setattr(tu.MatrixScaling, "_choose_strengths", lambda self, *more: searches.append(1) or own(self, *more))
    fix = tu.Auto(names, classes=range(4), logits=True, methods=["identity", "temperature", "matrixscaling"]).fit(data, y)
    assert len(searches) == 1
    chosen = fix.choice_.candidates[2]
    assert (fix.choice_.method, chosen.chosen, chosen.note, chosen.folds) == ("matrixscaling", True, "", 5)
    assert fix.history_.loss_after == chosen.loss  # of held-out rows
    assert chosen.loss > mean_loss(fix.predict(data), y)
    assert fix.model_.schema.features == ()
    np.testing.assert_array_equal(fix.predict({name: data[name] for name in names}), fix.predict(data))


@pytest.mark.parametrize("parameters", [{"structure": "full"}, {"strength": 0}, {"strength": "none"}, {"random_state": -1}])
def test_invalid_parameters_of_matrix_scaling_are_rejected(parameters):
    Z, y = draw(50, 3)
    with pytest.raises(ArgumentError, match=next(iter(parameters))):
        tu.MatrixScaling(logits=True, **parameters).fit(Z, y)
    with pytest.raises(ArgumentError, match="needs the scores of several classes"):
        tu.MatrixScaling().fit(special.expit(Z[:, 0]), y > 0)


class Tensor:
    """An array of another library, which NumPy converts."""

    def __init__(self, values):
        self.values, self.ndim, self.shape = values, values.ndim, values.shape

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)

    def __len__(self):
        return len(self.values)


def test_tensors_are_read_as_arrays():
    Z, y = draw(400, 3)
    for method in (tu.Temperature(logits=True), tu.MCGrad(logits=True, stopping=None, trees=3, threads=1)):
        expected = clone(method).fit(Z, y).predict(Z)
        fix = method.fit(Tensor(Z), Tensor(y))
        np.testing.assert_array_equal(fix.predict(Tensor(Z)), expected)
    fix = tu.Temperature(logits=True).fit(Tensor(Z[:, 0]), Tensor(y == 0))
    assert fix.predict(Tensor(Z[:, 0])).shape == (400,)
    with pytest.raises(ColumnError, match=r"one or two dimensions|cannot read data"):
        tu.Temperature(logits=True).fit(Tensor(Z[None]), y)


def test_booleans_are_outcomes_of_two_columns():
    Z, y = draw(400, 2)
    P, event = special.softmax(Z, axis=1), y == 1
    fix = tu.Temperature().fit(P, event)
    np.testing.assert_array_equal(fix.predict(P), tu.Temperature().fit(P, y).predict(P))
    assert fix.classes_.tolist() == [False, True]
    with pytest.raises(
        DataError, match="cannot tell which outcome each prediction column stands for: outcomes false, true"
    ):
        tu.Temperature().fit(special.softmax(draw(400, 3)[0], axis=1), event)


def test_logits_that_are_far_too_small_are_stretched():
    Z, y = draw(2000, 4)
    similarity = Z / 1000  # of the size of cosines
    expected = tu.Temperature(logits=True).fit(Z, y).temperature_ / 1000
    assert tu.Temperature(logits=True).fit(similarity, y).temperature_ == pytest.approx(expected, rel=1e-2)  # of the prior
    assert tu.Platt(logits=True).fit(similarity[:, 0], y == 0).slope_ > 100


@pytest.mark.parametrize("classes", [2, 3])
def test_logits_in_files_are_read(tmp_path, classes):
    pd = pytest.importorskip("pandas")
    Z, y = draw(600, classes)
    names = [f"z{number}" for number in range(classes)] if classes > 2 else ["z1"]
    frame = pd.DataFrame(Z, columns=[f"z{number}" for number in range(classes)]).assign(y=y, group=np.arange(600) % 3)
    frame.to_parquet(tmp_path / "rows.parquet")
    fix = tu.MCGrad(names, ["group"], logits=True, stopping=None, trees=3, threads=1)
    scores = clone(fix).fit(frame, "y").predict(frame)
    by_file = clone(fix).fit(tu.scan(tmp_path / "rows.parquet"), "y")
    np.testing.assert_allclose(by_file.predict(frame), scores, atol=1e-6)
    assert by_file.model_.schema.logits
