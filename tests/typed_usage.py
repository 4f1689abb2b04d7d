"""What a user's type checker sees; mypy checks this file with the package (`make types`), and nothing runs it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
from numpy.typing import NDArray

import trueup as tu
from trueup.calibrators.explain import Explanation
from trueup.calibrators.row_explanation import RowExplanation
from trueup.calibrators.serving import ServingStats

if TYPE_CHECKING:
    from trueup._types import DaskLike, SparkLike

Scores = NDArray[np.float64]


def load_and_score(spark: SparkLike, dask: DaskLike) -> None:
    model = tu.load("clicks.trueup", stats=True)
    assert_type(model, tu.Model)
    assert_type(tu.load(b""), tu.Model)
    assert_type(tu.load(io.BytesIO()), tu.Model)
    assert_type(model.predict({"p": np.array([0.2])}), Scores)
    assert_type(model.predict(np.array([0.2])), Scores)
    assert_type(model.predict([{"p": 0.2}], on_error="nan"), Scores)
    assert_type(model.predict(spark), Any)
    assert_type(model.predict(dask), Any)
    assert_type(model.predict_one({"p": 0.2}, strict=True), float | Scores)
    assert_type(model.explain(), Explanation)
    assert_type(model.explain({"p": 0.2}), RowExplanation)
    assert_type(model.with_stats(), tu.Model)
    assert_type(model.stats(), ServingStats)
    assert issubclass(tu.errors.DataError, tu.errors.TrueupError)
