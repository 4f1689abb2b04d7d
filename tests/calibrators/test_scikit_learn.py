"""Calibrators are classifiers to scikit-learn: scorers of probabilities, pipelines and searches work with them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

import trueup as tu

COLUMNS = ["region", "product", "age"]
CLASSES = [f"class {index}" for index in range(12)]


def mcgrad(**own):
    return tu.MCGrad(**{"prediction": "prediction", "features": COLUMNS, "threads": 1, "trees": 10} | own)


@pytest.fixture(scope="module")
def loans():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(tu.simulate.lending(1_500, seed=0))


@pytest.fixture(scope="module")
def classes():
    """Probabilities of twelve classes, and the index of the class of each row."""
    random = np.random.default_rng(0)
    P = random.dirichlet(np.ones(12), 1_500)
    return P, np.array([random.choice(12, p=row) for row in P])


@pytest.mark.parametrize("calibrator", [mcgrad(depth=2), tu.Platt("prediction"), tu.Beta("prediction")])
def test_the_log_loss_of_scikit_learn_is_minus_the_score_of_the_calibrator(loans, calibrator):
    given = (calibrator, loans, loans["outcome"])
    np.testing.assert_allclose(
        cross_val_score(*given, cv=3, scoring="neg_log_loss"), cross_val_score(*given, cv=3), rtol=1e-9
    )


def test_probabilities_of_one_score_are_those_of_zero_and_one(loans):
    fix = tu.Platt("prediction").fit(loans, loans["outcome"])
    P = fix.predict_proba(loans)
    assert fix.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(P[:, 1], fix.predict(loans))
    np.testing.assert_allclose(P.sum(axis=1), 1)


def test_a_search_over_parameters_of_mcgrad_minimises_the_log_loss(loans):
    y = loans["outcome"]
    search = GridSearchCV(mcgrad(), {"depth": [2, 3], "min_rows": [1, 50]}, cv=3, scoring="neg_log_loss").fit(loans, y)
    own = GridSearchCV(mcgrad(), {"depth": [2, 3], "min_rows": [1, 50]}, cv=3).fit(loans, y)
    assert search.best_params_ == own.best_params_
    assert search.best_score_ == pytest.approx(own.best_score_)
    np.testing.assert_array_equal(search.predict(loans), search.predict_proba(loans)[:, 1])
    assert search.classes_.tolist() == [0, 1]


def test_arrays_and_polars_frames_are_searched(loans):
    polars = pytest.importorskip("polars")
    X = loans[["prediction", "age", "term"]].to_numpy()
    by_array = GridSearchCV(tu.MCGrad(trees=10, threads=1), {"depth": [2, 3]}, cv=3, scoring="neg_log_loss")
    assert by_array.fit(X, loans["outcome"].to_numpy()).best_score_ < 0
    frame = polars.DataFrame({name: loans[name].to_numpy() for name in ("prediction", "age", "outcome")})
    scores = cross_val_score(mcgrad(features=["age"], depth=2), frame, frame["outcome"], cv=3, scoring="neg_log_loss")
    given = (mcgrad(features=["age"], depth=2), loans, loans["outcome"])
    np.testing.assert_allclose(scores, cross_val_score(*given, cv=3, scoring="neg_log_loss"))


def test_the_last_step_of_a_pipeline_is_scored_and_searched(loans):
    steps = [("decades", FunctionTransformer(lambda frame: frame.assign(age=frame["age"] // 10))), ("fix", mcgrad())]
    search = GridSearchCV(
        Pipeline(steps), {"fix__depth": [2, 3]}, cv=3, scoring=["neg_log_loss", "roc_auc"], refit="neg_log_loss"
    )
    search.fit(loans, loans["outcome"])
    assert search.best_score_ == search.cv_results_["mean_test_neg_log_loss"].max()
    assert (search.cv_results_["mean_test_roc_auc"] > 0.5).all()
    assert search.predict(loans).shape == (len(loans),)


def test_scores_of_labels_are_refused_since_predictions_are_probabilities(loans):
    with pytest.raises(ValueError, match="mix of binary and continuous"):
        cross_val_score(tu.Platt("prediction"), loans, loans["outcome"], cv=3, scoring="accuracy", error_score="raise")


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (lambda code: code, list(range(12))),
        (lambda code: code.astype(float), [float(index) for index in range(12)]),
        (lambda code: np.array(CLASSES)[code], sorted(CLASSES)),
        (lambda code: np.array(CLASSES, object)[code], sorted(CLASSES)),
    ],
    ids=["int", "float", "text", "object"],
)
def test_columns_of_several_classes_are_in_the_order_of_scikit_learn(classes, outcome, expected):
    pandas = pytest.importorskip("pandas")
    P, code = classes
    y, text = outcome(code), isinstance(expected[0], str)
    X = pandas.DataFrame(P, columns=CLASSES) if text else P  # twelve names: "class 10" sorts before "class 2", 10 after 2
    fix = tu.Temperature(CLASSES if text else None).fit(X, y)
    assert fix.classes_.tolist() == expected
    assert log_loss(y, fix.predict_proba(X)) == pytest.approx(-fix.score(X, y))
    given = (fix, X, y)
    np.testing.assert_allclose(cross_val_score(*given, cv=3, scoring="neg_log_loss"), cross_val_score(*given, cv=3))


def test_classes_are_booleans_if_the_outcome_is_and_texts_if_it_is_a_column():
    random = np.random.default_rng(0)
    p = random.uniform(0.1, 0.9, 200)
    y = random.random(200) < p
    data = {"no": 1 - p, "yes": p, "y": np.where(y, "yes", "no")}
    assert tu.Temperature(["no", "yes"]).fit(data, "y").classes_.tolist() == ["no", "yes"]
    fix = tu.Temperature(["yes", "no"], classes=[True, False]).fit(data, y)
    assert fix.classes_.tolist() == [False, True]
    np.testing.assert_array_equal(fix.predict_proba(data), fix.predict(data)[:, ::-1])


def test_a_class_that_is_no_number_and_does_not_occur_leaves_texts():
    P = np.tile([0.5, 0.3, 0.2], (90, 1))
    fix = tu.Temperature(classes=[0, 1, "other"]).fit(P, np.tile([0, 0, 1], 30))
    assert fix.classes_.tolist() == ["0", "1", "other"]


def test_a_calibrator_of_real_outcomes_is_a_regressor(loans):
    fix = mcgrad(task="regression", depth=2)
    assert is_regressor(fix)
    assert not is_classifier(fix)
    assert not hasattr(fix, "predict_proba")
    assert not hasattr(clone(fix).fit(loans, loans["outcome"]), "classes_")
    assert (cross_val_score(fix, loans, loans["outcome"], cv=3, scoring="neg_mean_squared_error") < 0).all()


def test_a_calibrator_that_is_not_fitted_has_no_classes():
    assert is_classifier(tu.Platt())
    assert not hasattr(tu.Platt(), "classes_")
