"""The page for users of mcgrad is true: its names are those of the package, and what it calls the same is the same."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import warnings

import numpy as np
import pytest

import trueup as tu
from mcgrad_names import code_for, public_names
from trueup import metrics

pytestmark = pytest.mark.filterwarnings("ignore")  # the peer warns about itself
MODULES = ("base", "methods", "metrics", "plotting", "tuning", "tutorials.helpers")
CATEGORIES = {"categorical_feature_column_names": ["region"]}
ROLES = {"prediction_column_name": "prediction", "label_column_name": "outcome"}


@pytest.fixture(scope="module")
def peer():
    """The modules of mcgrad by name."""
    logging.getLogger("mcgrad").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = "mcgrad is not installed: pip install 'trueup[parity]'"
        package = pytest.importorskip("mcgrad", reason=reason, exc_type=ImportError)
        if package.__version__ != "0.1.5":
            pytest.skip(f"the page is about mcgrad 0.1.5; got {package.__version__}")
        return {name: importlib.import_module(f"mcgrad.{name}") for name in ("methods", "metrics")}


@pytest.fixture(scope="module")
def loans():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(tu.simulate.lending(10_000, seed=0))


@pytest.fixture(params=[0, 1])
def sample(request):
    """The names that the code of the page uses: scores without ties, outcomes and weights."""
    from sklearn import metrics as scores

    random = np.random.default_rng(request.param)
    n = (800, 20_000)[request.param]
    p = random.beta(2, 4, n) * 0.98 + 0.01
    y, w = (random.random(n) < np.clip(1.05 * p, 0, 1)).astype(float), random.uniform(0.5, 2, n)
    region = random.choice(["harbour", "capital", "east"], n)
    return {
        "np": np, "metrics": metrics, "scores": scores, "y": y, "p": p, "w": w, "loans": {"region": region},
        "harbour": region == "harbour",
    }  # fmt: skip


def _parameters(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls", "args", "kwargs")]


def _assigned(node):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _names_of(module):
    """Return the parameters of the public names that a module of mcgrad defines itself."""
    names = {}
    for node in ast.parse(inspect.getsource(module)).body:
        for name in _assigned(node):
            value = getattr(module, name, None)
            if name.startswith("_"):
                continue
            names[name] = _parameters(value.__init__ if inspect.isclass(value) else value) if callable(value) else []
            if not isinstance(node, ast.ClassDef):
                names[name] = names[name] if isinstance(node, ast.FunctionDef) else []
                continue
            for base in value.__mro__:
                own = vars(base).items() if base.__module__.startswith("mcgrad") else ()
                for member, found in own:
                    inner = getattr(found, "__func__", found)
                    if not member.startswith("_"):
                        found_parameters = _parameters(inner) if inspect.isfunction(inner) else []
                        names.setdefault(f"{name}.{member}", found_parameters)
    return names


@pytest.mark.parametrize("module", MODULES)
def test_the_listed_names_are_those_of_the_package(peer, module):
    listed = {name.removeprefix(f"{module}."): own for name, own in public_names().items() if name.startswith(f"{module}.")}
    installed = _names_of(pytest.importorskip(f"mcgrad.{module}", exc_type=ImportError))
    assert listed == installed


def test_measures_that_the_page_calls_the_same_are_the_same(peer, sample):
    y, p, w = sample["y"], sample["p"], sample["w"]
    scored = {"labels": y, "predicted_scores": p, "sample_weight": w}
    hard = {"labels": y, "predicted_labels": p > 0.2, "sample_weight": w}
    ranked = {"y_true": y, "y_scores": p}
    mask = {"y_true": y.astype(bool), "y_pred": p > 0.2, "y_mask": sample["harbour"], "sample_weight": w}
    given = {
        **dict.fromkeys(
            (
                "ecce", "ecce_sigma", "expected_calibration_error", "proportional_expected_calibration_error",
                "calibration_ratio", "normalized_entropy", "calibration_free_normalized_entropy", "youdens_j",
            ),
            scored,
        ),
        "soft_label_log_loss": {"y_true": y, "y_pred": p, "sample_weight": w},
        "recall": hard,
        "precision": {"labels": y, "predicted_labels": p > 0.2, "precision_weight": w},
        "fpr": hard,
        "fpr_with_mask": mask | {"denominator": w[y == 0].sum()},
        "recall_at_precision": ranked | {"precision_target": 0.2},
        "precision_at_recall": ranked | {"recall_target": 0.5},
        "fpr_at_precision": ranked | {"precision_target": 0.2},
        "precision_at_predictive_prevalence": ranked | {"predictive_prevalence_target": 0.2},
    }  # fmt: skip
    for name, arguments in given.items():
        theirs = getattr(peer["metrics"], name)(**arguments)
        assert eval(code_for(name), dict(sample)) == pytest.approx(theirs, rel=1e-5), name


def test_rank_errors_by_segment_are_the_same_without_ties(peer, sample):
    pandas = pytest.importorskip("pandas")
    names = sample | {"y": np.clip(sample["p"] + 0.1 * sample["w"], 0, 1) * 0.9}
    segments = pandas.DataFrame(sample["loans"])
    theirs = peer["metrics"].rank_multicalibration_error(names["y"], names["p"], segments, num_bins=10)
    assert eval(code_for("rank_multicalibration_error"), names) == pytest.approx(theirs, abs=1e-9)


def test_measures_that_the_page_says_differ_do_differ(peer, sample):
    y, p = sample["y"], sample["p"]
    assert peer["metrics"].ecce_pvalue(y, p) < metrics.ecce_pvalue(y, p)
    assert peer["metrics"].ecce_pvalue(np.ones(500), np.full(500, 0.5) + np.arange(500) * 1e-6) > 1e-17
    theirs = peer["metrics"].adaptive_calibration_error(y, p)
    assert theirs != pytest.approx(metrics.ace(y, p, n_bins=40), rel=1e-3)
    assert theirs == pytest.approx(metrics.ace(y, p, n_bins=40), abs=0.03)


def test_bins_are_closed_on_the_other_side(peer):
    y, p = np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.25, 0.3, 0.7, 0.75])
    # Here 0.25 is alone in the first of four bins; there it is with 0.3, and 0.75 is alone.
    assert metrics.ece(y, p, n_bins=4) == pytest.approx((0.75 + 0.3 + abs(1 - 1.45)) / 4)
    theirs = peer["metrics"].expected_calibration_error(y, p, num_bins=4)
    assert theirs == pytest.approx((abs(1 - 0.55) + 0.7 + 0.25) / 4, abs=1e-6)


@pytest.mark.parametrize("weight", [None, "w"])
def test_an_audit_has_the_numbers_of_their_multicalibration_error(peer, loans, weight):
    frame = loans.assign(w=np.random.default_rng(0).uniform(0.5, 2, len(loans)))
    theirs = peer["metrics"].MulticalibrationError(
        frame, "outcome", "prediction", weight, ["region", "product"], max_values_per_segment_feature=50, max_depth=2,
        min_samples_per_segment=50, precision_dtype="float64", max_n_segments=None,
    )  # fmt: skip
    audit = tu.audit(frame, outcome="outcome", prediction="prediction", by=["region", "product"], weight=weight)
    names = {"audit": audit, "np": np}
    for name in ("mce_sigma", "mce", "mce_relative", "mde", "mde_relative", "global_ecce_relative"):
        assert eval(code_for(name), names) == pytest.approx(getattr(theirs, name), rel=1e-6), name
    ecce, sigma, _ = eval(code_for("global_ecce"), names)
    assert (ecce, sigma) == pytest.approx((theirs.global_ecce, theirs.global_ecce_sigma), rel=1e-6)
    listed = eval(code_for("segments_ecce"), names)
    np.testing.assert_allclose(np.sort(listed["ecce"]), np.sort(theirs.segments_ecce), rtol=1e-6)
    np.testing.assert_allclose(np.sort(listed["sigma"]), np.sort(theirs.segments_ecce_sigma), rtol=1e-6)
    relative = eval(code_for("segments_ecce_relative"), names)
    np.testing.assert_allclose(np.sort(relative), np.sort(theirs.segments_ecce_relative), rtol=1e-6)
    assert eval(code_for("total_number_segments"), names) == theirs.total_number_segments
    assert np.log10(eval(code_for("mce_pvalue"), names)) == pytest.approx(np.log10(theirs.mce_pvalue), abs=2)


def test_classes_that_the_page_calls_the_same_are_the_same(peer, loans):
    columns = {"tu": tu, "columns": ["region", "product", "age"]}
    for name, tolerance in (
        ("IsotonicRegression", 1e-12), ("AdditiveAdjustment", 1e-12), ("MultiplicativeAdjustment", 1e-12), ("PlattScaling", 2e-3),
    ):  # fmt: skip
        theirs = getattr(peer["methods"], name)().fit(loans, **ROLES).predict(loans, "prediction")
        ours = eval(code_for(name), columns).fit(loans, loans["outcome"]).predict(loans)
        np.testing.assert_allclose(ours, theirs, atol=tolerance, err_msg=name)


def test_additive_adjustment_without_clipping_is_that_of_real_numbers(peer, loans):
    frame = loans.assign(prediction=1 - 0.2 * loans["prediction"], outcome=1.0)
    theirs = peer["methods"].AdditiveAdjustment(clip_to_zero_one=False).fit(frame, **ROLES).predict(frame, "prediction")
    ours = tu.Additive("prediction", task="regression").fit(frame, frame["outcome"]).predict(frame)
    assert theirs.max() > 1
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_groups_are_their_segments_without_shrinkage_only(peer, loans):
    theirs = peer["methods"].SegmentwiseCalibrator(peer["methods"].PlattScaling)
    fixed = theirs.fit(loans, **ROLES, **CATEGORIES).predict(loans, "prediction", **CATEGORIES)
    own = eval(code_for("SegmentwiseCalibrator"), {"tu": tu}).fit(loans, loans["outcome"]).predict(loans)
    np.testing.assert_allclose(own, fixed, atol=0.01)
    shrunk = tu.Grouped(tu.Platt(), by=["region"], prediction="prediction").fit(loans, loans["outcome"]).predict(loans)
    assert np.abs(shrunk - fixed).max() > 0.05


def test_their_trees_on_all_rows_are_nearer_to_theirs_than_the_defaults(peer):
    pandas = pytest.importorskip("pandas")
    train, later = (pandas.DataFrame(tu.simulate.lending(20_000, seed=seed)) for seed in (0, 1))
    columns = {**CATEGORIES, "numerical_feature_column_names": ["age"]}
    theirs = peer["methods"].MCGrad().fit(train, **ROLES, **columns)
    expected = theirs.predict(later, "prediction", **columns)

    def distance(calibrator):
        return np.abs(calibrator.fit(train, train["outcome"]).predict(later) - expected).mean()

    own = {"tu": tu, "columns": ["region", "age"]}
    same = eval(code_for("lightgbm_params"), own).set_params(stopping=None, rounds=theirs.num_rounds_trained)
    assert theirs.num_rounds_trained > 0
    for other in (
        tu.MCGrad("prediction", own["columns"]),
        tu.MCGrad("prediction", own["columns"], depth=None, stopping=tu.Holdout(0.2)),
    ):
        assert distance(same) < distance(other)
