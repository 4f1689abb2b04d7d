"""CalibratedClassifier and CalibratedRegressor: scikit-learn's checks, cross-fitting, kinds of X, and errors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, RepeatedKFold, TimeSeriesSplit, cross_val_score
from sklearn.multiclass import OneVsOneClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

import trueup as tu
from trueup.calibrators.crossfit import ScoreReader, divide_rows
from trueup.errors import ArgumentError, ColumnError, DataError, DroppedColumnWarning, LeakageWarning, TrueupWarning


@pytest.fixture(autouse=True)
def _one_thread():
    with threadpool_limits(1):  # small matrix products spend most time waiting for threads
        yield


def cheap(**own):
    return tu.MCGrad(**{"rounds": 1, "trees": 5, "stopping": tu.CrossValidation(2), "threads": 1} | own)


def population(n, seed, classes=2):
    """Make two numbers and a flag that reverses the effect of the first, which a linear model cannot represent."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 3))
    X[:, 2] = X[:, 2] > 0.5
    margin = X[:, 0] + 0.7 * X[:, 1] + X[:, 2] * (1.2 - 2 * X[:, 0]) - 0.5
    if classes == 2:
        return X, (random.random(n) < 1 / (1 + np.exp(-margin))).astype(int)
    cuts = np.quantile(margin, np.arange(1, classes) / classes)
    return X, np.searchsorted(cuts, margin + random.logistic(size=n))


# scikit-learn's checks.


@parametrize_with_checks([tu.CalibratedClassifier(), tu.CalibratedRegressor()])
def test_defaults_pass_scikit_learn_checks(estimator, check):
    check(estimator)


# Cross-fitting.


class Memoriser(ClassifierMixin, BaseEstimator):
    """Memorises its training rows, and predicts 0.5 for all others."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.seen_ = dict(zip(X[:, 0].tolist(), y.tolist(), strict=True))
        return self

    def predict_proba(self, X):
        p = np.array(
            [0.5 if x not in self.seen_ else 0.99 if self.seen_[x] == self.classes_[1] else 0.01 for x in X[:, 0].tolist()]
        )
        return np.column_stack([1 - p, p])


class Recorder(tu.MCGrad):
    """Keeps the data it was fitted on."""

    def fit(self, X, y=None, sample_weight=None):
        self.shown_ = dict(X), np.asarray(y), sample_weight
        return super().fit(X, y, sample_weight)


def test_calibrator_is_fitted_on_out_of_fold_predictions():
    X, y = population(200, 0)
    model = tu.CalibratedClassifier(Memoriser(), Recorder(rounds=1, trees=5, repeats=1)).fit(X, y)
    columns, outcome, weight = model.calibrator_.shown_
    assert (columns["prediction"] == 0.5).all()
    assert np.array_equal(outcome, y)
    assert weight is None
    assert len(model.estimator_.seen_) == 200


def test_memorising_estimators_are_calibrated_unless_prefit_on_the_same_rows():
    (X, y), (new, truth) = population(1500, 1), population(4000, 2)
    nearest = KNeighborsClassifier(1)
    honest = tu.CalibratedClassifier(nearest, tu.MCGrad(threads=2, repeats=1)).fit(X, y)
    fooled = tu.CalibratedClassifier(KNeighborsClassifier(1).fit(X, y), tu.MCGrad(threads=2, repeats=1), cv="prefit").fit(
        X, y
    )
    p, q = (model.predict_proba(new)[:, 1] for model in (honest, fooled))
    assert log_loss(truth, p) < 0.7 < 5 < log_loss(truth, np.clip(q, 1e-6, 1 - 1e-6))
    assert tu.metrics.ecce(truth, p) < 0.3 * tu.metrics.ecce(truth, q)


def test_prefit_equals_fitting_the_calibrator_by_hand():
    (X, y), (more, outcome), (new, _) = population(500, 3), population(800, 4), population(100, 5)
    base = GaussianNB().fit(X, y)
    model = tu.CalibratedClassifier(base, tu.MCGrad(threads=2, repeats=1), cv="prefit").fit(more, outcome)

    def columns(X):
        return {"p": base.predict_proba(X)[:, 1], "x0": X[:, 0], "x1": X[:, 1], "x2": X[:, 2]}

    by_hand = tu.MCGrad("p", threads=2, repeats=1).fit(columns(more), outcome)
    assert by_hand.history_.chosen
    assert model.estimator_ is base
    assert np.array_equal(model.predict_proba(new)[:, 1], by_hand.predict(columns(new)))


def test_wrong_probabilities_of_zero_are_softened_by_a_curve():
    (X, y), (new, truth) = population(800, 35, classes=3), population(2000, 36, classes=3)
    model = tu.CalibratedClassifier(DecisionTreeClassifier(random_state=0), cheap()).fit(X, y)
    before, after = model.predict_uncorrected(new), model.predict_proba(new)
    assert np.isin(model.estimator_.predict_proba(new), [0, 1]).all()
    assert 0.05 < before.min() < before.max() < 0.95
    assert log_loss(truth, after) <= log_loss(truth, before) < 1.1
    sure = tu.CalibratedClassifier(LogisticRegression(), cheap()).fit(X, y)
    assert np.array_equal(sure.predict_uncorrected(new), sure.estimator_.predict_proba(new))


def test_the_features_improve_on_a_curve_of_the_score_alone():
    (X, y), (new, truth) = population(3000, 6), population(5000, 7)
    own = tu.CalibratedClassifier(calibrator=tu.MCGrad(threads=2, repeats=1)).fit(X, y)
    blind = tu.CalibratedClassifier(calibrator=tu.MCGrad(threads=2, repeats=1), features=()).fit(X, y)
    losses = [log_loss(truth, model.predict_proba(new)) for model in (own, blind)]
    assert losses[0] < losses[1] - 0.02


def test_row_order_and_copies_do_not_change_folds():
    X, y = population(60, 8)
    order = np.random.default_rng(0).permutation(60)
    weight = np.random.default_rng(1).integers(0, 4, 60)
    plain = tu.CalibratedClassifier().fit(X, y).predict_proba(X)
    assert tu.CalibratedClassifier().fit(X[order], y[order]).predict_proba(X) == pytest.approx(plain, abs=1e-6)
    weighted = tu.CalibratedClassifier().fit(X, y, sample_weight=weight).predict_proba(X)
    repeated = tu.CalibratedClassifier().fit(X.repeat(weight, 0), y.repeat(weight)).predict_proba(X)
    assert weighted == pytest.approx(repeated, abs=1e-6)
    assert abs(weighted - plain).max() > 1e-3


def test_folds_are_stratified_and_contain_no_copies_of_training_rows():
    X, y = population(103, 9, classes=3)
    twice, labels = np.vstack([X, X]), np.concatenate([y, y])
    splits = divide_rows(5, twice, labels, labels.astype(float), np.arange(206), {})
    assert np.array_equal(np.sort(np.concatenate([test for _, test in splits])), np.arange(206))
    for train, test in splits:
        assert not set(twice[train, 0]) & set(twice[test, 0])
        assert abs(np.bincount(labels[test]) - np.bincount(labels) / 5).max() <= 2


@pytest.mark.parametrize(
    "cv",
    [
        3, KFold(4), TimeSeriesSplit(3), [(np.arange(50), np.arange(50, 100)), (np.arange(50, 100), np.arange(50))],
        [([0, 1], []), (list(range(50)), list(range(50, 100))), (list(range(50, 100)), list(range(50)))],
    ],
)  # fmt: skip
def test_cv_accepts_integers_splitters_and_iterables(cv):
    X, y = population(100, 10)
    model = tu.CalibratedClassifier(calibrator=tu.Platt(), cv=cv).fit(X, y)
    assert model.calibrator_.model_.about.rows == (75 if isinstance(cv, TimeSeriesSplit) else 100)


# Labels.


def test_several_classes_with_text_labels():
    X, codes = population(3_000, 11, classes=3)
    y = np.array(["owl", "cat", "dog"])[codes]
    model = tu.CalibratedClassifier(GaussianNB(), cheap()).fit(X, y)
    p = model.predict_proba(X)
    assert model.classes_.tolist() == ["cat", "dog", "owl"]
    assert p.sum(axis=1) == pytest.approx(1, abs=1e-12)
    assert np.array_equal(model.predict(X), model.classes_[p.argmax(axis=1)])
    assert model.calibrator_.model_.schema.classes == ("cat", "dog", "owl")
    assert log_loss(y, p) < log_loss(y, model.estimator_.predict_proba(X))


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [-1, 1], [1.0, 2.0], [10, 20]])
def test_labels_of_any_kind_give_the_same_probabilities(labels):
    X, y = population(120, 12)
    model = tu.CalibratedClassifier().fit(X, np.array(labels)[y])
    assert model.classes_.tolist() == labels
    assert set(model.predict(X).tolist()) == set(labels)
    assert np.array_equal(model.predict_proba(X), tu.CalibratedClassifier().fit(X, y).predict_proba(X))


@pytest.mark.parametrize("estimator", [LogisticRegression(), LinearSVC()])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_missing_in_a_fold_are_accepted(estimator, classes):
    X, y = population(60, 13, classes=classes)
    y[y == 1] = 0
    y[7] = 1
    model = tu.CalibratedClassifier(estimator, tu.Platt()).fit(X, y)
    assert len(model.classes_) == classes
    assert np.isfinite(model.predict_proba(X)).all()


def test_unknown_classes_have_probability_zero():
    seen = LogisticRegression().fit([[0.0], [1.0]], ["a", "c"])
    p = ScoreReader("predict_proba", np.array(["a", "b", "c"])).read(seen, [[0.2]])
    assert p[0, 1] == 0
    assert p.sum() == pytest.approx(1)
    assert ScoreReader("predict_proba", np.array(["a", "b"])).constant("b", 2).tolist() == [[0, 1], [0, 1]]


class Backwards(LogisticRegression):
    """Has its classes and scores in descending order."""

    def fit(self, X, y):
        super().fit(X, y)
        self.ascending_, self.classes_ = LogisticRegression().fit(X, y), self.classes_[::-1]
        return self

    def predict_proba(self, X):
        return self.ascending_.predict_proba(X)[:, ::-1]

    def decision_function(self, X):
        found = self.ascending_.decision_function(X)
        return -found if found.ndim == 1 else found[:, ::-1]


@pytest.mark.parametrize("method", ["predict_proba", "decision_function"])
@pytest.mark.parametrize("classes", [2, 3])
def test_class_order_of_the_estimator_does_not_matter(classes, method):
    X, y = population(300, 38, classes)
    for cv in (3, "prefit"):
        found = []
        for base in (LogisticRegression(), Backwards()):
            model = tu.CalibratedClassifier(base.fit(X, y), tu.Platt(), cv=cv, method=method).fit(X, y)
            found.append((model.classes_.tolist(), model.predict_proba(X)))
        assert found[0][0] == found[1][0]
        np.testing.assert_allclose(found[1][1], found[0][1], atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_margins_become_probabilities(classes):
    (X, y), (new, truth) = population(1000, 14, classes), population(3000, 15, classes)
    model = tu.CalibratedClassifier(LinearSVC(), cheap()).fit(X, y)
    p = model.predict_proba(new)
    assert p.sum(axis=1) == pytest.approx(1, abs=1e-12)
    reference = log_loss(truth, LogisticRegression().fit(X, y).predict_proba(new))
    assert log_loss(truth, p) < reference + 0.01


def test_method_decision_function_uses_margins():
    X, y = population(200, 16)
    model = tu.CalibratedClassifier(LogisticRegression(), tu.Platt(), method="decision_function").fit(X, y)
    plain = tu.CalibratedClassifier(LogisticRegression(), tu.Platt()).fit(X, y)
    assert model.predict_proba(X) == pytest.approx(plain.predict_proba(X), abs=0.02)


# Kinds of X.


def frame_columns(n=400):
    random = np.random.default_rng(17)
    country = np.array(["BR", "DE", "US"], object)[random.integers(0, 3, n)]
    age = random.integers(18, 80, n).astype(float)
    y = (random.random(n) < np.where(country == "BR", 0.7, 0.3)).astype(int)
    return {"country": country.tolist(), "age": age.tolist(), "prediction": random.random(n).tolist()}, y


def test_frames_reach_the_estimator_unchanged_and_name_calibrator_features(frame):
    columns, y = frame_columns()
    X = frame(columns)

    def encode(part):
        assert type(part) is type(X)
        return np.column_stack([np.asarray(part["country"]) == "BR", np.asarray(part["age"], float) / 50])

    pipeline = make_pipeline(FunctionTransformer(encode), LogisticRegression())
    model = tu.CalibratedClassifier(pipeline, cheap()).fit(X, y)
    schema = model.calibrator_.model_.schema
    assert [(one.name, one.kind) for one in schema.features] == [
        ("country", "categorical"),
        ("age", "numeric"),
        ("prediction", "numeric"),
    ]
    assert schema.prediction == ("prediction_",)
    assert model.feature_names_in_.tolist() == ["country", "age", "prediction"]
    assert model.predict_proba(X).shape == (400, 2)
    alone = tu.CalibratedClassifier(pipeline, cheap(), features=["country"]).fit(X, y)
    assert [one.name for one in alone.calibrator_.model_.schema.features] == ["country"]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_column_transformers_are_supported(library):
    columns, y = frame_columns()
    X = pytest.importorskip(library).DataFrame(columns)
    steps = ColumnTransformer(
        [("country", OneHotEncoder(), ["country"]), ("rest", StandardScaler(), ["age", "prediction"])]
    )
    model = tu.CalibratedClassifier(make_pipeline(steps, LogisticRegression()), cheap(), n_jobs=1).fit(X, y)
    assert model.score(X, y) > 0.6
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(X[["age", "country", "prediction"]])


def test_unusable_columns_are_left_out():
    pd = pytest.importorskip("pandas")
    columns, y = frame_columns()
    X = pd.DataFrame({**columns, "id": [f"row {at}" for at in range(400)], "list": [[at] for at in range(400)], "copy": y})
    base = make_pipeline(FunctionTransformer(lambda part: part[["age"]] / 50), LogisticRegression())
    copied = pytest.warns(LeakageWarning, match="column 'copy' is identical to the outcome: the correction does not use it")
    with copied, pytest.warns(DroppedColumnWarning, match="'country'"):
        model = tu.CalibratedClassifier(base, cheap(exclude="prediction")).fit(X, y)
    assert [one.name for one in model.calibrator_.model_.schema.features] == ["country", "age"]
    with pytest.raises(ColumnError, match="identical to the outcome"):
        tu.CalibratedClassifier(base, cheap(), features=["copy"]).fit(X, y)


def test_lists_of_texts_are_supported():
    words, y = ["good day", "bad day", "good food", "bad food", "so good", "so bad"] * 10, [1, 0] * 30
    model = tu.CalibratedClassifier(make_pipeline(CountVectorizer(), LogisticRegression())).fit(words, y)
    assert model.predict(["very good", "very bad"]).tolist() == [1, 0]
    assert model.calibrator_.model_.schema.features == ()


def test_sparse_matrices_reach_the_features_or_are_refused():
    X, y = population(400, 18)
    S = sparse.csr_array(np.where(abs(X) < 0.3, 0, X))
    all_columns = tu.CalibratedClassifier(calibrator=cheap()).fit(S, y)
    assert len(all_columns.calibrator_.model_.schema.features) == X.shape[1]
    wide = sparse.hstack([S, sparse.csr_array((400, 100))]).tocsr()
    with pytest.raises(
        ArgumentError, match=r"X is a sparse matrix of \d+ columns.*\n.*features=\[\] corrects by the score"
    ):
        tu.CalibratedClassifier(calibrator=cheap()).fit(wide, y)
    for model in (tu.CalibratedClassifier(calibrator=cheap(), features=[]), tu.CalibratedClassifier(calibrator=tu.Platt())):
        assert model.fit(wide, y).calibrator_.model_.schema.features == ()
    with pytest.raises(ColumnError, match=r"csr_array\nhint: a sparse matrix: select the columns to use"):
        tu.MCGrad(0).fit(S, y)
    named = tu.CalibratedClassifier(calibrator=cheap(), features=[2, 0]).fit(S, y)
    assert [one.name for one in named.calibrator_.model_.schema.features] == ["x2", "x0"]
    # Folds by content differ between sparse and dense rows, so these are given.
    alike = {"calibrator": cheap(stopping=None), "features": [2, 0], "cv": KFold(3)}
    one, other = (tu.CalibratedClassifier(**alike).fit(rows, y).predict_proba(rows) for rows in (S, S.toarray()))
    assert one == pytest.approx(other, abs=1e-4)
    order = np.random.default_rng(0).permutation(400)
    one, other = (tu.CalibratedClassifier(calibrator=tu.Platt()).fit(S[rows], y[rows]) for rows in (slice(None), order))
    assert other.predict_proba(S) == pytest.approx(one.predict_proba(S), abs=1e-6)


def test_missing_values_are_left_to_the_estimator():
    X, y = population(400, 19)
    X[::7, 1] = np.nan
    model = tu.CalibratedClassifier(HistGradientBoostingClassifier(max_iter=5), cheap(), cv=2).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    with pytest.raises(ValueError, match="NaN"):
        tu.CalibratedClassifier(calibrator=cheap()).fit(X, y)


def test_calibrator_features_and_categories_name_columns_of_x():
    X, y = population(400, 20)
    model = tu.CalibratedClassifier(calibrator=cheap(features=[2, "x0"], categorical=[2])).fit(X, y)
    assert [(one.name, one.kind) for one in model.calibrator_.model_.schema.features] == [
        ("x2", "categorical"),
        ("x0", "numeric"),
    ]


@pytest.mark.parametrize(
    "calibrator",
    [tu.Isotonic(), tu.Beta(), tu.Grouped(tu.Platt(), by="x2"), tu.Multiaccuracy(), tu.HKRR(), tu.DepthTwo(trees=5)],
    ids=lambda x: type(x).__name__,
)
def test_every_calibrator_is_supported(calibrator):
    X, y = population(400, 37)
    p = tu.CalibratedClassifier(GaussianNB(), calibrator).fit(X, y).predict_proba(X)
    assert p.shape == (400, 2)
    assert ((p >= 0) & (p <= 1)).all()


# Regression.


def test_regressors_are_corrected_on_segments():
    random = np.random.default_rng(21)
    X = random.normal(size=(4000, 2))
    y = X[:, 0] + 2 * (X[:, 1] > 1) + random.normal(size=4000)
    model = tu.CalibratedRegressor(calibrator=tu.MCGrad(threads=2, repeats=1)).fit(X[:2000], y[:2000])
    before, after = (np.mean((y[2000:] - one.predict(X[2000:])) ** 2) for one in (model.estimator_, model))
    assert after < before - 0.15
    assert model.calibrator_.model_.schema.task == "regression"


def test_memorising_regressors_are_shrunk():
    random = np.random.default_rng(22)
    X = random.normal(size=(600, 1))
    y = X[:, 0] + 2 * random.normal(size=600)
    model = tu.CalibratedRegressor(KNeighborsRegressor(1), tu.Platt()).fit(X, y)
    assert 0 < model.calibrator_.slope_ < 0.5


# Weights and metadata.


def test_weights_reach_estimator_and_calibrator():
    X, y = population(400, 23)
    weight = np.where(X[:, 2] > 0, 3.0, 1.0)
    model = tu.CalibratedClassifier(calibrator=Recorder(rounds=1, trees=5)).fit(X, y, sample_weight=weight)
    assert np.array_equal(model.calibrator_.shown_[2], weight)
    assert np.allclose(model.estimator_.coef_, LogisticRegression().fit(X, y, weight).coef_)


def test_estimators_without_weights_raise_a_warning():
    X, y = population(100, 24)
    with pytest.warns(TrueupWarning, match="KNeighborsClassifier does not accept sample_weight"):
        tu.CalibratedClassifier(KNeighborsClassifier(), tu.Platt()).fit(X, y, sample_weight=np.ones(100))


def test_metadata_is_routed_as_it_is_requested():
    X, y = population(400, 25)
    weight, groups = np.where(X[:, 2] > 0, 3.0, 1.0), np.arange(400) // 10
    with config_context(enable_metadata_routing=True):
        for asked in (True, False):
            base = LogisticRegression().set_fit_request(sample_weight=asked)
            model = tu.CalibratedClassifier(base, Recorder(rounds=1, trees=5), cv=GroupKFold(4)).fit(
                X, y, sample_weight=weight, groups=groups
            )
            expected = LogisticRegression().fit(X, y, weight if asked else None).coef_
            assert np.allclose(model.estimator_.coef_, expected)
            assert np.array_equal(model.calibrator_.shown_[2], weight)
        pipeline = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=True), LogisticRegression().set_fit_request(sample_weight=True)
        )
        inside = tu.CalibratedClassifier(pipeline, tu.Platt()).fit(X, y, sample_weight=weight)
        assert np.allclose(
            inside.estimator_.predict_proba(X), clone(pipeline).fit(X, y, sample_weight=weight).predict_proba(X)
        )
        with pytest.raises(ValueError, match="sample_weight"):
            tu.CalibratedClassifier(LogisticRegression(), tu.Platt()).fit(X, y, sample_weight=weight)
        ready = tu.CalibratedClassifier(LogisticRegression().fit(X, y), tu.Platt(), cv="prefit")
        with pytest.raises(TypeError, match="colour"):
            ready.fit(X, y, colour=groups)
    with pytest.raises(ValueError, match="groups"):
        tu.CalibratedClassifier(cv=GroupKFold(4)).fit(X, y, groups=groups)


def test_rows_of_weight_zero_are_ignored():
    X, y = population(150, 26)
    weight = np.ones(150)
    weight[::3] = 0
    odd = np.where(weight > 0, y, 2)  # a class of rows of weight 0 only
    for cv in (5, KFold(3)):
        given = tu.CalibratedClassifier(cv=cv).fit(X, odd, sample_weight=weight)
        left = tu.CalibratedClassifier(cv=cv).fit(X[weight > 0], y[weight > 0])
        assert given.classes_.tolist() == [0, 1]
        assert given.predict_proba(X) == pytest.approx(left.predict_proba(X), abs=1e-9)


def test_default_calibrator_depends_on_weighted_rows():
    X, y = population(299, 27)

    def chosen(**own):
        return type(tu.CalibratedClassifier().fit(X, y, **own).calibrator_)

    assert chosen() is tu.Platt
    assert chosen(sample_weight=np.r_[2.0, np.ones(298)]) is tu.MCGrad
    assert chosen(sample_weight=np.full(299, 0.3)) is tu.Platt


# scikit-learn's tools.


def test_scikit_learn_tools_are_supported():
    X, y = population(300, 28)
    model = tu.CalibratedClassifier(LogisticRegression(), cheap(), cv=2)
    for scoring in ("roc_auc", "neg_log_loss"):
        assert np.isfinite(cross_val_score(model, X, y, scoring=scoring, cv=2)).all()
    search = GridSearchCV(
        model, {"estimator__C": [0.01, 1], "calibrator__depth": [1, 2]}, cv=2, scoring="neg_log_loss"
    ).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.calibrator_.depth in (1, 2)
    fitted = make_pipeline(StandardScaler(), model).fit(X, y)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), fitted.predict_proba(X))
    assert repr(clone(model)) == repr(model)
    frozen = tu.CalibratedClassifier(FrozenEstimator(LogisticRegression().fit(X, y)), tu.Platt(), cv="prefit")
    assert np.isfinite(cross_val_score(frozen, X, y, cv=2)).all()


def test_jobs_do_not_change_the_result():
    X, y = population(200, 29)
    forest = RandomForestClassifier(5, random_state=0)
    one, two = (tu.CalibratedClassifier(forest, n_jobs=jobs).fit(X, y).predict_proba(X) for jobs in (None, 2))
    assert np.array_equal(one, two)


def test_correction_is_explained_and_saved_separately(tmp_path):
    X, y = population(2000, 30)
    model = tu.CalibratedClassifier(calibrator=tu.MCGrad(threads=2, repeats=1)).fit(X, y)
    assert model.explain().corrections
    assert "x2" in repr(model.explain({"prediction": 0.4, "x0": 1.0, "x2": 1.0}))
    with pytest.raises(ArgumentError, match=r"holds an estimator of another library(.|\n)*calibrator_"):
        tu.save(model, tmp_path / "model.trueup")
    tu.save(model.calibrator_, tmp_path / "fix.trueup")
    columns = {"prediction": model.estimator_.predict_proba(X)[:, 1], **{f"x{at}": X[:, at] for at in range(3)}}
    assert np.array_equal(tu.load(tmp_path / "fix.trueup").predict(columns), model.predict_proba(X)[:, 1])


# Errors.

X60, Y60 = population(60, 31)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"calibrator": LogisticRegression()}, "a calibrator of trueup; got LogisticRegression"),
        ({"calibrator": tu.MCGrad}, "got the class MCGrad"),
        ({"calibrator": tu.MCGrad("p")}, "must not name a prediction column; got 'p'"),
        ({"calibrator": tu.MCGrad(task="regression")}, "must not have task 'regression' with this estimator"),
        ({"calibrator": tu.MCGrad(features=[0]), "features": [1]}, "named twice, here and in the calibrator"),
        ({"calibrator": tu.Platt(), "features": [1]}, "features are not used by Platt"),
        ({"cv": 1}, "cv must be a number of folds, at least 2"),
        ({"cv": True}, "cv must be a number of folds"),
        ({"cv": "five"}, "cv must be a number of folds"),
        ({"cv": None}, "cv must be a number of folds"),
        ({"cv": RepeatedKFold(n_splits=2, n_repeats=2)}, "predicts some rows more than once"),
        ({"cv": [(np.arange(0), np.arange(60))]}, "cannot be divided"),
        ({"cv": [(np.arange(60), np.arange(30))]}, "predicts training rows"),
        ({"cv": [(np.arange(30), np.arange(30, 61))]}, r"pairs of lists of row numbers.*from 0 to 59; got \(array"),
        ({"cv": [(np.arange(30), np.arange(-30, 0))]}, "pairs of lists of row numbers"),
        ({"cv": [(np.arange(60) < 30, np.arange(60) >= 30)]}, "pairs of lists of row numbers"),
        ({"cv": [1, 2]}, r"pairs of lists of row numbers.*got 1\nhint: write it as cv=\[\(train, test\), ...\]"),
        ({"cv": []}, r"cv contains no rows to predict\nhint: an iterator is exhausted after one fit"),
        ({"cv": "prefit"}, "needs a fitted estimator"),
        ({"cv": "prefit", "estimator": LogisticRegression()}, "this LogisticRegression is not fitted"),
        ({"cv": "prefit", "estimator": LogisticRegression().fit(X60, Y60 + 1)}, "does not know: 0"),
        ({"calibrator": tu.MCGrad(), "features": ["colour"]}, r"no column 'colour' to use as feature(.|\n)*x0, x1, x2"),
        ({"calibrator": tu.MCGrad(), "features": [3]}, "no column 3 to use as feature"),
        ({"calibrator": tu.MCGrad(), "features": [0, "x0"]}, "'x0' appears more than once"),
        ({"calibrator": tu.MCGrad(categorical=["colour"])}, "no column 'colour' to use as categorical"),
        ({"method": "predict"}, "method must be one of"),
        ({"estimator": LinearSVC(), "method": "predict_proba"}, "method predict_proba; LinearSVC has none"),
        ({"estimator": LinearRegression()}, "method predict_proba or decision_function; LinearRegression has none"),
    ],
)  # fmt: skip
def test_invalid_parameters_are_rejected(parameters, message):
    with pytest.raises(ValueError, match=message):
        tu.CalibratedClassifier(**parameters).fit(X60, Y60)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros(60)}, "one class only"),
        ({"X": X60[:5], "y": Y60[:5]}, "5 samples .* too few"),
        ({"sample_weight": -np.ones(60)}, "must not be negative"),
        ({"sample_weight": np.zeros(60)}, "are all zero"),
        ({"sample_weight": np.ones(59)}, "shape .59,. for 60 rows"),
        ({"sample_weight": np.r_[np.ones(9), np.zeros(51)]}, "9 samples"),
    ],
)
def test_invalid_data_is_rejected(change, message):
    with pytest.raises(DataError, match=message):
        tu.CalibratedClassifier().fit(**{"X": X60, "y": Y60} | change)


def test_margins_per_pair_of_classes_are_rejected():
    X, y = population(200, 32, classes=4)
    with pytest.raises(DataError, match="returns 6 columns for 4 classes"):
        tu.CalibratedClassifier(OvO(LinearSVC()), tu.Platt()).fit(X, y)


class OvO(OneVsOneClassifier):
    def decision_function(self, X):
        return np.column_stack([one.decision_function(X) for one in self.estimators_])


class Flat(Memoriser):
    def predict_proba(self, X):
        return super().predict_proba(X)[:, 1]


def test_probabilities_of_one_class_are_rejected():
    with pytest.raises(DataError, match=r"predict_proba returns shape \(\d+,\) for 2 classes"):
        tu.CalibratedClassifier(Flat(), tu.Platt()).fit(X60, Y60)


def test_unfitted_models_raise():
    for model, call in ((tu.CalibratedClassifier(), "predict_proba"), (tu.CalibratedRegressor(), "predict")):
        with pytest.raises(NotFittedError):
            getattr(model, call)(X60)
        with pytest.raises(NotFittedError):
            model.explain()


def test_constant_estimators_are_corrected_by_features():
    (X, y), (new, truth) = population(2000, 33), population(3000, 34)
    model = tu.CalibratedClassifier(DummyClassifier(), tu.MCGrad(threads=2, repeats=1)).fit(X, y)
    assert log_loss(truth, model.predict_proba(new)) < 0.95 * log_loss(truth, model.estimator_.predict_proba(new))


# ------------------------------------------------------------------ columns that the correction must not use


def protected_population(n=1500):
    """Return columns a and group, and outcomes that depend on both; a pipeline that drops group; the same in polars."""
    pd = pytest.importorskip("pandas")
    random = np.random.default_rng(5)
    X = pd.DataFrame({"a": random.normal(size=n), "group": random.choice(["x", "y"], n)})
    y = (random.random(n) < 1 / (1 + np.exp(-X["a"] - 2.5 * (X["group"] == "x")))).to_numpy().astype(int)
    base = make_pipeline(ColumnTransformer([("kept", "passthrough", ["a"])], remainder="drop"), LogisticRegression())
    return X, y, base


def test_fit_warns_if_the_correction_uses_columns_that_the_pipeline_drops():
    X, y, base = protected_population()
    message = r"predictions of the estimator do not depend on: 'group'\nhint: if it was dropped .* pass exclude=\['group'\]"
    with pytest.warns(DroppedColumnWarning, match=message):
        model = tu.CalibratedClassifier(base, cheap(), cv=2).fit(X, y)
    other = X.assign(group=np.where(X["group"] == "x", "y", "x"))
    assert not np.allclose(model.predict_proba(other), model.predict_proba(X))
    polars = pytest.importorskip("polars")
    with pytest.warns(DroppedColumnWarning, match="'group'"):
        tu.CalibratedClassifier(base, cheap(), cv=2).fit(polars.DataFrame({name: X[name].tolist() for name in X}), y)
    matrix = np.column_stack([X["a"], X["group"] == "x"])
    for kind in (np.asarray, sparse.csr_matrix):
        with pytest.warns(DroppedColumnWarning, match="'x1'"):
            tu.CalibratedClassifier(make_pipeline(SelectFirst(), LogisticRegression()), cheap(), cv=2).fit(kind(matrix), y)
    tu.CalibratedClassifier(base, cheap(), cv=2, features=["group"]).fit(X, y)  # named: no warning


class SelectFirst(FunctionTransformer):
    """Keep the first column."""

    def __init__(self):
        super().__init__(lambda X: X[:, [0]], accept_sparse=True)


def test_excluded_columns_reach_the_estimator_and_not_the_correction():
    X, y, base = protected_population()
    other = X.assign(group="y")
    for model in (
        tu.CalibratedClassifier(base, cheap(), cv=2, exclude="group"),
        tu.CalibratedClassifier(base, cheap(exclude=["group"]), cv=2),
        tu.CalibratedClassifier(base, tu.Platt(), cv=2, exclude=[1]),
    ):
        model.fit(X, y)
        assert (model.predict_proba(other) == model.predict_proba(X)).all()
        assert [level.segment for level in model.explain().excluded] == ["group=x", "group=y"]
        assert model.calibrator_.exclude == ["group"]
    assert tu.CalibratedRegressor(exclude=["x1"], calibrator=cheap()).fit(np.eye(50, 2), np.arange(50.0)).exclude == ["x1"]
    for settings, message in (
        ({"exclude": "grp"}, "X has no column 'grp' to use as excluded column"),
        ({"exclude": "group", "features": ["group"]}, "column 'group' is named both as feature and in exclude"),
    ):
        with pytest.raises(ColumnError, match=message):
            tu.CalibratedClassifier(base, cheap(), cv=2, **settings).fit(X, y)
    with pytest.raises(ArgumentError, match="exclude is set twice"):
        tu.CalibratedClassifier(base, cheap(exclude="group"), exclude="group").fit(X, y)


def test_fit_warns_of_a_copy_of_the_outcome_with_few_errors():
    X, y, _ = protected_population()
    near = np.column_stack([X["a"], np.where(np.arange(len(y)) % 300, y, 1 - y)])
    with pytest.warns(LeakageWarning, match=r"'x1' \(AUC 0.99\d*\) predicts the outcome almost perfectly"):
        tu.CalibratedClassifier(calibrator=cheap(), cv=2).fit(near, y)
    amount = np.random.default_rng(0).normal(size=len(y))
    rows = {"p": amount, "copy": 3 * amount + 1e-3 * X["a"].to_numpy()}
    with pytest.warns(LeakageWarning, match=r"'copy' \(rank correlation 0.999"):
        tu.MCGrad("p", task="regression").fit(rows, amount + 1e-4)
