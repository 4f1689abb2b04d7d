"""Keys of single rows: columns of the frame of the fit, misspelled names, unseen levels and arrays."""

import io
import re

import numpy as np
import pytest

import trueup as tu
from trueup.errors import ArgumentError, ColumnError, DataError


@pytest.fixture(scope="module")
def model():
    random = np.random.default_rng(0)
    n = 600
    data = {
        "p": random.random(n), "occupation": random.choice(["clerk", "cook"], n), "age": random.integers(20, 60, n) * 1.0,
        "sex": random.choice(["f", "m"], n), "education": random.choice(["college", "school"], n),
    }  # fmt: skip
    fix = tu.Logistic("p", ["occupation", "age"], exclude=["sex"], stopping=None)
    return fix.fit(data, random.random(n) < data["p"]).model_


def test_other_columns_of_the_frame_are_known_keys_of_a_row_without_a_feature(model):
    row = {"p": 0.3, "age": 30.0}
    more = {**row, "sex": "f", "education": "school"}
    assert model.predict_one(more) == model.predict_one(row)
    file = io.BytesIO()
    tu.save(model, file)
    file.seek(0)
    assert tu.load(file).predict_one(more) == model.predict_one(row)
    assert model.explain(more).after == model.predict_one(row)


@pytest.mark.parametrize(
    ("key", "hint"), [("ocupation", "did you mean 'occupation'?"), ("educated", "leave such keys out")]
)
def test_a_misspelled_key_names_a_close_column_only(model, key, hint):
    with pytest.raises(ColumnError, match="not a column of the model") as error:
        model.predict_one({"p": 0.3, "age": 30.0, key: "clerk"})
    assert hint in str(error.value)


def test_an_unseen_level_is_unknown_and_not_missing():
    random = np.random.default_rng(0)
    job = random.choice(["clerk", "cook"], 600)
    y = random.random(600) < np.where(job == "cook", 0.2, 0.8)
    data = {"p": np.full(600, 0.5), "occupation": job, "age": random.random(600)}
    model = tu.MCGrad("p", ["occupation", "age"], stopping=None, trees=20, rounds=1).fit(data, y).model_
    names = [effect.name for effect in model.explain({"p": 0.3, "occupation": "cok", "age": 30.0}).effects]
    assert "occupation is unknown: cok" in names
    names = [effect.name for effect in model.explain({"p": 0.3, "occupation": None, "age": 30.0}).effects]
    assert "occupation is missing" in names


@pytest.mark.parametrize("row", [[0.2, 3.0], np.array([0.2, 3.0])])
def test_a_row_as_an_array_is_refused_with_the_names_of_its_columns(row):
    random = np.random.default_rng(0)
    X = np.column_stack([random.random(500), random.integers(0, 5, 500)])
    model = tu.Logistic(0).fit(X, random.random(500) < X[:, 0]).model_
    for call in (model.predict_one, model.explain):
        with pytest.raises(ArgumentError, match=re.escape("{'x0': 0.2, 'x1': ...}")):
            call(row)
    with pytest.raises(ColumnError, match="did you mean 'x0'"):
        model.predict_one({0: 0.2, 1: 3.0})


def test_an_audit_of_an_array_of_classes_says_how_to_name_its_columns():
    random = np.random.default_rng(0)
    P, y = random.dirichlet([1, 1, 1], 300), random.integers(0, 3, 300)
    with pytest.raises(DataError, match=re.escape("prediction=list(range(3))")):
        tu.audit(P, outcome=y)
    assert tu.audit(P, outcome=y, prediction=list(range(3))).schema.task == "multiclass"
