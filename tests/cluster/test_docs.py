"""The code blocks of the page about clusters run, in their order, with fewer trees."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import trueup as tu

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
FEATURES = 'features=["region", "product", "age"]'
QUICK = {"trees": 20, "stopping": tu.CrossValidation(2)}
BY_DASK, BY_SPARK, RESUMED = (code.replace(FEATURES, f"{FEATURES}, **quick") for code in BLOCKS)


@pytest.fixture
def loans(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pd.DataFrame(tu.simulate.lending(4_000, seed=5))
    (tmp_path / "loans").mkdir()
    for at in range(2):
        data.iloc[at::2].to_parquet(tmp_path / "loans" / f"{at}.parquet")
    return data


def test_the_page_runs_on_dask_and_resumes_from_a_file(loans, client):
    names = {"quick": QUICK}
    exec(BY_DASK, names)
    assert names["audit"].rows == len(loans)
    fixed = names["fixed"]["fixed"].compute()
    assert len(fixed) == len(loans)
    exec(RESUMED, names)
    again = names["fix"].predict(names["loans"]).compute()
    np.testing.assert_allclose(again, fixed, rtol=1e-12)
    assert not Path("loans.checkpoint").exists()


def test_the_page_runs_on_spark(loans, spark):
    names = {"spark": spark, "quick": QUICK}
    exec(BY_SPARK.replace('"loans/', f'"{Path.cwd()}/loans/'), names)  # Java has another working directory
    assert names["audit"].rows == len(loans)
    assert names["fixed"].count() == len(loans)
    assert set(names["fixed"].columns) == {*loans.columns, "prediction_trueup"}
    files = tu.MCGrad(prediction="prediction", features=["region", "product", "age"], **QUICK).fit(
        tu.scan("loans/*.parquet"), "outcome"
    )
    assert names["fix"].history_.chosen == files.history_.chosen > 0
    np.testing.assert_allclose(tu.load("loans.trueup").predict(loans), files.predict(loans), rtol=1e-9)
