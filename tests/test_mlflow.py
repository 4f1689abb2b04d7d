"""Models in MLflow: what it loads predicts the same to the bit, with the signature of the model, without scikit-learn."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import trueup as tu
from packages import need
from trueup.errors import ArgumentError, FileError, MissingPackageError

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns about its own dependencies
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (Path(__file__).parents[1] / "docs" / "deploy.md").read_text(), re.MULTILINE | re.DOTALL
)
COLUMNS = ["region", "term", "age", "renewed", "opened"]


@pytest.fixture(scope="module")
def mlflow():
    """MLflow, which keeps everything in files of this machine and sends nothing."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        need("mlflow")
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        yield mlflow


@pytest.fixture
def store(mlflow, tmp_path, monkeypatch):
    """An empty tracking store in the current directory."""
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield mlflow
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def loans():
    pd = pytest.importorskip("pandas")
    loans = pd.DataFrame(tu.simulate.lending(3_000, seed=0))
    return loans.assign(renewed=loans["age"] > 40)


@pytest.fixture(scope="module")
def fix(loans):
    return tu.MCGrad("prediction", COLUMNS, categorical=["term"], stopping=None, rounds=1, trees=10).fit(loans, "outcome")


def test_a_saved_model_predicts_the_same_to_the_bit(store, fix, loans):
    tu.mlflow.save_model(fix, "saved")
    served = store.pyfunc.load_model("saved")
    rows = loans.iloc[::-1]
    found = served.predict(rows)
    assert found.columns.tolist() == ["prediction_trueup"]
    assert found.index.equals(rows.index)
    assert found["prediction_trueup"].tolist() == fix.predict(rows).tolist()
    assert tu.mlflow.load_model("saved").predict(rows).tolist() == fix.predict(rows).tolist()


def test_the_signature_is_that_of_the_model(store, fix, loans):
    tu.mlflow.save_model(fix.model_, "saved")
    signature = store.models.get_model_info("saved").signature
    assert json.loads(signature.to_dict()["inputs"]) == [
        {"type": "double", "name": "prediction", "required": True},
        {"type": "string", "name": "region", "required": False},
        {"type": "any", "name": "term", "required": False},
        {"type": "double", "name": "age", "required": False},
        {"type": "boolean", "name": "renewed", "required": False},
        {"type": "datetime", "name": "opened", "required": False},
    ]
    assert json.loads(signature.to_dict()["outputs"]) == [{"type": "double", "name": "prediction_trueup", "required": True}]


def test_absent_and_missing_features_are_scored_as_missing(store, fix, loans):
    tu.mlflow.save_model(fix, "saved")
    served = store.pyfunc.load_model("saved")
    expected = fix.predict(loans.assign(region=None, opened=None)).tolist()
    assert served.predict(loans[["prediction", "term", "age", "renewed"]])["prediction_trueup"].tolist() == expected
    assert served.predict(loans.assign(region=None, opened=None))["prediction_trueup"].tolist() == expected
    missing = loans.assign(region=loans["region"].where(loans["age"] > 30, None), age=loans["age"].where(loans["age"] > 50))
    assert served.predict(missing)["prediction_trueup"].tolist() == fix.predict(missing).tolist()
    with pytest.raises(store.exceptions.MlflowException, match="prediction"):
        served.predict(loans.drop(columns="prediction"))


def test_rows_are_read_as_mlflow_serves_them(store, fix, loans):
    """A list of records becomes a frame; categories that read as numbers may be texts."""
    tu.mlflow.save_model(fix, "saved")
    served = store.pyfunc.load_model("saved")
    records = loans[["prediction", "region", "term", "age", "renewed"]].head(20).to_dict("records")
    expected = [fix.predict_one(record) for record in records]
    assert served.predict(records)["prediction_trueup"].tolist() == expected
    texts = [record | {"term": str(record["term"])} for record in records]
    assert served.predict(texts)["prediction_trueup"].tolist() == expected


def test_an_invalid_score_is_an_error_with_the_message_of_trueup(store, fix, loans):
    tu.mlflow.save_model(fix, "saved")
    with pytest.raises(ValueError, match="must hold probabilities"):
        store.pyfunc.load_model("saved").predict(loans.assign(prediction=2.0))


def test_a_logged_model_has_the_page_of_an_audit(store, fix, loans):
    audit = tu.audit(loans, outcome="outcome", prediction="prediction", by=["region"])
    with store.start_run() as run:
        info = tu.mlflow.log_model(fix, name="lending", audit=audit)
    page = Path(store.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="audit.html")).read_text()
    tu.report(audit, "expected.html")
    assert page == Path("expected.html").read_text()
    inside = Path(store.artifacts.download_artifacts(info.model_uri)) / "data" / "trueup" / "audit.html"
    assert inside.read_text() == page
    assert (
        store.pyfunc.load_model(info.model_uri).predict(loans)["prediction_trueup"].tolist() == fix.predict(loans).tolist()
    )


def test_a_model_can_be_logged_without_a_run(store, fix, loans):
    audit = tu.audit(loans, outcome="outcome", prediction="prediction", by=["region"])
    info = tu.mlflow.log_model(fix, audit=audit)
    assert store.active_run() is None
    assert tu.mlflow.load_model(info.model_uri).info().method == "MCGrad"


def test_several_classes_have_a_column_each(store, loans):
    random = np.random.default_rng(0)
    P = random.dirichlet([2, 1, 1], 500)
    rows = {f"p{c}": P[:, c] for c in range(3)}
    fix = tu.Temperature(list(rows)).fit(rows, random.integers(0, 3, 500))
    tu.mlflow.save_model(fix, "saved")
    import pandas as pd

    found = store.pyfunc.load_model("saved").predict(pd.DataFrame(rows))
    assert found.columns.tolist() == ["p0_trueup", "p1_trueup", "p2_trueup"]
    assert found.to_numpy().tolist() == fix.predict(rows).tolist()


def test_imported_models_of_mcgrad_are_served(store):
    path = Path(__file__).parent / "golden" / "mcgrad_files" / "binary.json"
    content = json.loads(path.read_text())
    tu.mlflow.save_model(tu.load_mcgrad(content["model"], prediction="p"), "saved")
    import pandas as pd

    rows = pd.DataFrame({name: content["rows"][name] for name in ("p", "region", "new", "branch")})
    rows["age"] = [np.nan if v is None else float(v) for v in content["rows"]["age"]]
    rows["income"] = [float(v) for v in content["rows"]["income"]]
    found = store.pyfunc.load_model("saved").predict(rows)["p_trueup"]
    np.testing.assert_allclose(found, content["scores"], rtol=0, atol=1e-12)


def test_the_pyfunc_needs_neither_scikit_learn_nor_lightgbm(store, fix, loans, tmp_path):
    tu.mlflow.save_model(fix, "saved")
    loans.head(50).to_pickle("rows.pickle")
    code = (
        "import sys\n"
        "sys.modules |= {'sklearn': None, 'lightgbm': None}\n"
        "import mlflow, pandas\n"
        "found = mlflow.pyfunc.load_model('saved').predict(pandas.read_pickle('rows.pickle'))\n"
        "print(found['prediction_trueup'].tolist())\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == fix.predict(loans.head(50)).tolist()


def test_parameters_that_trueup_sets_are_refused(store, fix):
    with pytest.raises(ArgumentError, match="python_model, signature cannot be set"):
        tu.mlflow.save_model(fix, "saved", signature=None, python_model=object())
    with pytest.raises(ArgumentError, match="has no model to save"):
        tu.mlflow.save_model(tu.MCGrad("p"), "saved")
    tu.mlflow.save_model(fix, "saved", metadata={"team": "risk"}, pip_requirements=["trueup"])
    assert store.models.get_model_info("saved").metadata == {"team": "risk"}
    assert Path("saved/requirements.txt").read_text().split()[1:] == ["trueup"]  # after MLflow itself


def test_a_model_of_something_else_is_refused(store, tmp_path):
    (tmp_path / "other" / "data").mkdir(parents=True)
    with pytest.raises(FileError, match="other is not a model of trueup"):
        tu.mlflow.load_model("other")


def test_the_code_of_the_page_runs(store):
    names = {}
    own, wrapped = (block for block in BLOCKS if "mlflow" in block)
    exec(own, names)
    assert names["scores"].tolist() == names["fix"].predict(names["loans"]).tolist()
    assert names["model"].predict_one({"prediction": 0.2, "region": "harbour", "age": 44.0}) == names["fix"].predict_one(
        {"prediction": 0.2, "region": "harbour", "age": 44.0}
    )
    exec(wrapped, names)
    X = names["X"]
    assert names["again"].predict_proba(X).tolist() == names["calibrated"].predict_proba(X).tolist()


def test_a_calibrated_classifier_is_logged_in_the_format_of_skops(store, loans):
    need("skops")
    import mlflow.sklearn
    import skops.io
    from sklearn.linear_model import LogisticRegression

    X, y = loans[["prediction", "age"]], loans["outcome"]
    calibrated = tu.CalibratedClassifier(LogisticRegression(), tu.Platt()).fit(X, y)
    types = skops.io.get_untrusted_types(data=skops.io.dumps(calibrated))
    assert all(name.startswith("trueup.") for name in types)
    with store.start_run():
        options = {"serialization_format": "skops", "skops_trusted_types": types, "pip_requirements": ["trueup"]}
        info = mlflow.sklearn.log_model(calibrated, name="wrapped", **options)
    again = mlflow.sklearn.load_model(info.model_uri)
    assert again.predict_proba(X).tolist() == calibrated.predict_proba(X).tolist()
    assert store.pyfunc.load_model(info.model_uri).predict(X).tolist() == calibrated.predict(X).tolist()


def test_mlflow_is_imported_on_use_only():
    code = "import sys, trueup as tu; tu.mlflow.__all__; assert not {'mlflow', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_mlflow_the_extra_is_named(monkeypatch, fix, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingPackageError) as caught:
        tu.mlflow.save_model(fix, tmp_path / "saved")
    assert caught.value.hint == "pip install 'trueup[mlflow]'"
