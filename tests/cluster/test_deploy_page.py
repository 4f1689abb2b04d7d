"""The code about Spark of docs/deploy.md: a frame with one more column, and a function of columns in SQL."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

import trueup as tu

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_the_page_scores_a_spark_frame_and_in_sql(tmp_path, monkeypatch, spark):
    monkeypatch.chdir(tmp_path)
    loans = pd.DataFrame(tu.simulate.lending(2_000, seed=0))[["prediction", "region", "age", "outcome"]]
    fix = tu.MCGrad("prediction", ["region", "age"], stopping=None, rounds=1, trees=20).fit(loans, "outcome")
    tu.save(fix, "lending.trueup")
    loans.loc[::7, "region"] = None
    loans.to_parquet("loans.parquet")
    (code,) = re.findall(r"^```python\n([^`]*?pandas_udf.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names = {"spark": spark}
    exec(code.replace('"loans/*.parquet"', f'"{tmp_path}/loans.parquet"'), names)  # Java has another working directory
    expected = np.sort(fix.predict(loans))
    for frame, column in ((names["scored"], "prediction_trueup"), (names["in_sql"], "score")):
        assert np.sort([row[0] for row in frame.select(column).collect()]).tolist() == expected.tolist()
