"""Warnings of columns that predict the outcome almost perfectly, and of columns that look like other scores."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import trueup as tu
from commands import call
from trueup.data.frame import read
from trueup.errors import LeakageWarning, ScoreColumnWarning, TrueupWarning

DATA = Path(os.environ.get("TRUEUP_DATA", Path(__file__).parents[3] / "shared" / "data"))
ROWS = 4000


def loans(rows=ROWS, seed=0):
    """Return rows with a calibrated score ``p`` of AUC 0.8, an outcome ``y``, and ordinary columns."""
    random = np.random.default_rng(seed)
    logit = random.normal(-1, 1.5, rows)
    p = 1 / (1 + np.exp(-logit))
    return {
        "p": p,
        "y": (random.random(rows) < p).astype(float),
        "age": random.normal(40, 10, rows) - 2 * logit,
        "utilisation": np.clip(random.beta(2, 3, rows) + 0.05 * logit, 0, 1),
        "group": random.choice(["a", "b", "c"], rows),
    }


def another_score(data, noise=0.5, bias=0.0):
    """Return a score of the same outcome: the logit of ``p`` with noise and a bias."""
    logit = np.log(data["p"] / (1 - data["p"])) + np.random.default_rng(1).normal(bias, noise, len(data["p"]))
    return 1 / (1 + np.exp(-logit))


def messages(data, category=None, **options):
    """Return the warnings of leakage and of other scores that an audit of ``data`` raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tu.audit(data, **{"outcome": "y", "prediction": "p", "depth": 1, **options})
    wanted = (LeakageWarning, ScoreColumnWarning) if category is None else category
    return [str(warning.message) for warning in caught if issubclass(warning.category, wanted)]


def test_ordinary_columns_raise_no_warning():
    assert messages(loans()) == []


@pytest.mark.parametrize("frame", [dict, pd.DataFrame, pl.DataFrame, pa.table])
def test_other_scores_are_named_if_the_columns_are_not(frame):
    data = loans()
    data |= {"p_model_b": another_score(data), "p_balanced": another_score(data, bias=1.5), "p_no": 1 - data["p"]}
    (message,) = messages(frame(data))
    assert message == (
        "columns 'p_model_b', 'p_balanced', 'p_no' look like other scores of the same outcome, and are used as any other "
        "column\nhint: if that is not intended, name the columns to use, with by= or features= (--by or --features on the "
        "command line)"
    )
    assert messages(frame(data), by=["age", "p_model_b"]) == []


def test_a_fit_names_other_scores_if_features_are_not_named():
    data = loans()
    data["p_model_b"] = another_score(data)
    with pytest.warns(ScoreColumnWarning, match="column 'p_model_b' looks like another score"):
        tu.MCGrad("p", rounds=1, trees=2, stopping=None).fit(data, "y")
    tu.MCGrad("p", features=["age", "p_model_b"], rounds=1, trees=2, stopping=None).fit(data, "y")


def test_a_much_better_score_of_a_weak_prediction_is_named():
    data = loans()
    data["p_strong"], data["p"] = data["p"], np.clip(another_score(data, noise=4), 0.01, 0.99)
    (message,) = messages(data)
    assert "'p_strong'" in message


def test_many_names_are_abbreviated():
    data = loans(1000)
    data |= {f"p{number}": another_score(data, noise=0.05 * number) for number in range(1, 9)}
    (message,) = messages(data)
    assert message.startswith("columns 'p1', 'p2', 'p3', 'p4', 'p5', 'p6' and 2 more look like other scores")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("by", [None, ["age", "days_overdue"]])
def test_the_outcome_plus_noise_is_a_leak_also_if_it_is_named(by, sign):
    data = loans()
    data["days_overdue"] = sign * (data["y"] + np.random.default_rng(2).normal(0, 0.2, ROWS))
    (message,) = messages(data, by=by)
    assert message.startswith("column 'days_overdue' (AUC 0.999")
    assert "predicts the outcome almost perfectly; the prediction has 0.8" in message
    assert "\nhint: if known only after the outcome, or computed from it, leave it out: name the columns to use" in message
    with pytest.warns(LeakageWarning, match="'days_overdue'"):
        tu.MCGrad("p", features=["days_overdue"], rounds=1, trees=2, stopping=None).fit(data, "y")


def test_missing_values_and_categories_reveal_outcomes():
    data, random = loans(), np.random.default_rng(3)
    day = np.datetime64("2026-01-01") + random.integers(0, 300, ROWS)
    defaulted = data["y"] == 1
    data["default_date"] = np.where(defaulted, day, np.datetime64("NaT"))
    data["status"] = np.where(random.random(ROWS) < 0.003, "unknown", np.where(defaulted, "lost", "paid"))
    noisy = data["y"] + random.normal(0, 0.1, ROWS)
    data["partly_known"] = np.where(random.random(ROWS) < 0.5, noisy, np.nan)
    (message,) = messages(data)
    assert message.startswith("columns 'default_date' (AUC 1), 'status' (AUC 0.99")
    assert "'partly_known' (AUC 1) predict" in message


def test_a_column_that_the_prediction_matches_is_no_leak():
    data = loans()
    data["known"] = data["y"] + np.random.default_rng(4).normal(0, 0.3, ROWS)
    data["p"] = 1 / (1 + np.exp(-(data["known"] - 0.5) * 11))
    assert messages(data, LeakageWarning) == []
    data["p"] = loans()["p"]
    assert len(messages(data, LeakageWarning)) == 1


def test_few_rows_of_an_outcome_are_no_evidence():
    data = loans(400)
    data["y"] = np.where(np.arange(400) < 49, 1.0, 0.0)
    data["copy"] = data["y"] + np.random.default_rng(5).normal(0, 0.01, 400)
    assert messages(data) == []
    data["y"][49:60] = 1.0
    data["copy"] = data["y"] + np.random.default_rng(5).normal(0, 0.01, 400)
    assert len(messages(data, LeakageWarning)) == 1


def test_rare_outcomes_are_compared_by_as_many_rows_of_each():
    data = loans(30_000)
    data["y"] = (np.random.default_rng(6).random(30_000) < 0.01 * data["p"]).astype(float)
    data["p"] = 0.01 * data["p"]
    data["copy"] = data["y"] + np.random.default_rng(7).normal(0, 0.2, 30_000)
    assert "'copy'" in messages(data, LeakageWarning)[0]


def test_real_outcomes_are_compared_by_rank_correlation():
    data, random = loans(), np.random.default_rng(8)
    data["p"] = np.exp(random.normal(5, 1, ROWS))
    data["y"] = data["p"] * random.gamma(2, 0.5, ROWS)
    data["invoice"] = data["y"] * random.uniform(0.95, 1.05, ROWS)
    data["other_forecast"] = data["p"] * random.uniform(0.9, 1.1, ROWS)
    (message,) = messages(data, task="regression")
    assert message.startswith("column 'invoice' (rank correlation 0.99")


def test_several_classes_have_leaks_and_other_scores():
    random = np.random.default_rng(9)
    p = random.dirichlet([1, 1, 1], ROWS)
    y = np.array([random.choice(3, p=row) for row in p])
    data = {f"p{label}": p[:, label] for label in range(3)} | {"y": y, "other": np.clip(p[:, 1] ** 1.2, 0, 1)}
    data |= {"code": y + random.normal(0, 0.05, ROWS), "size": random.normal(size=ROWS)}
    leak, score = messages(data, prediction=["p0", "p1", "p2"])
    assert leak.startswith("column 'code' (AUC")
    assert score.startswith("column 'other' looks like another score")


def test_without_prediction_leaks_are_named():
    data = loans()
    data["copy"] = data["y"] + np.random.default_rng(10).normal(0, 0.2, ROWS)
    with pytest.warns(LeakageWarning, match=r"column 'copy' \(AUC 0.99\d+\) predicts the outcome almost perfectly\n"):
        tu.LSBoost(task="binary", features=["age", "copy"]).fit({k: v for k, v in data.items() if k != "p"}, "y")


def test_files_in_chunks_and_the_command_line_warn(tmp_path, capsys):
    data = loans()
    data |= {"copy": data["y"] + np.random.default_rng(11).normal(0, 0.2, ROWS), "p_model_b": another_score(data)}
    path = tmp_path / "loans.parquet"
    pl.DataFrame(data).write_parquet(path)
    expected = messages(data)
    assert len(expected) == 2
    assert [text.split("(")[0] for text in messages(tu.scan(path))] == [text.split("(")[0] for text in expected]
    command = ["audit", str(path), "--outcome", "y", "--prediction", "p", "--depth", "1"]
    for options in ([], ["--memory", "1GB"]):
        _, _, err = call(capsys, *command, *options)
        assert "warning: column 'copy' (AUC 0.99" in err
        assert "warning: column 'p_model_b' looks like another score" in err
        _, _, err = call(capsys, *command, *options, "--by", "age,group")
        assert "warning" not in err
    _, _, err = call(capsys, *command, "--against", "p_model_b")
    assert "p_model_b" not in err
    fit = ["fit", str(path), "--outcome", "y", "--prediction", "p", "--memory", "1GB", "-o", str(tmp_path / "m.trueup")]
    _, _, err = call(capsys, *fit)
    assert "warning: column 'copy' (AUC 0.99" in err
    assert "warning: column 'p_model_b' looks like another score" in err


REAL = {
    "acs_employment_ma": ("employed", ["predicted_probability"], []),
    "adult": ("income_over_50k", [], []),
    "bank_marketing": ("subscribed", [], []),
    "acs_mobility_2018": ("same_address", [], []),
    "communities_crime": ("ViolentCrimesPerPop", [], []),
    "cifar10_test_probs": ("label", ["wrn16_4_p3"], ["label_name"]),
}


@pytest.mark.parametrize("name", REAL)
def test_real_data_raise_no_false_warnings(name):
    path = DATA / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    outcome, (prediction, *_), dropped = REAL[name][0], [*REAL[name][1], None], REAL[name][2]
    data = pl.read_parquet(path).drop(dropped).head(20_000)
    y = data[outcome].cast(pl.Float64).to_numpy()
    y = (y == 3).astype(float) if name.startswith("cifar") else (y > np.median(y)) * 1.0 if "crime" in name else y
    if prediction is None:
        numbers = data.drop(outcome).select(pl.selectors.numeric()).fill_null(0).to_numpy().astype(float)
        prediction = fitted_scores((numbers - numbers.mean(axis=0)) / (numbers.std(axis=0) + 1e-9), y)
    data = data.drop(outcome)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TrueupWarning)
        read(data, outcome=y, prediction=prediction, check_columns=True)
    leaks = [str(warning.message) for warning in caught if issubclass(warning.category, LeakageWarning)]
    scores = [str(warning.message) for warning in caught if issubclass(warning.category, ScoreColumnWarning)]
    assert leaks == []
    if name.startswith("cifar"):  # it has the scores of other networks
        (message,) = scores
        assert message.startswith("column 'vgg16_p3' looks like another score")
    else:
        assert scores == []


def fitted_scores(numbers, y):
    """Return the scores of a linear regression of the outcome on columns, fitted on every other row."""
    columns = np.column_stack([numbers, np.ones(len(y))])
    return np.clip(columns @ np.linalg.lstsq(columns[::2], y[::2])[0], 0.01, 0.99)
