"""Run mcgrad's own tests, and write every model that they predict with: its file, its rows and its scores.

    python bench/peers/mcgrad_tests.py FOLDER

The last line is a JSON object: the numbers of models written, and of predictions that could not be.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcgrad import methods

counts: Counter[str] = Counter()


def recorded(folder: Path) -> Any:
    """Return a `predict` that writes what it returns."""
    predict = methods._BaseMCGrad.predict

    def record(self: Any, df: Any, prediction_column_name: str, *names: Any, **options: Any) -> Any:
        scores = predict(self, df, prediction_column_name, *names, **options)
        if type(scores) is not np.ndarray or scores.ndim != 1:
            counts["of all rounds"] += 1
            return scores
        try:
            model = self.serialize()
        except TypeError:  # of a test double
            counts["not serialisable"] += 1
            return scores
        path = folder / f"{counts['models']:04}"
        df.to_pickle(path.with_suffix(".pickle"))
        content = {"model": model, "prediction": prediction_column_name, "scores": scores.tolist()}
        path.with_suffix(".json").write_text(json.dumps(content))
        counts["models"] += 1
        return scores

    return record


def main() -> None:
    folder = Path(sys.argv[1])
    methods._BaseMCGrad.predict = recorded(folder)
    options = [
        "-q",
        "--pyargs",
        "mcgrad.tests.test_methods",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "--rootdir",
        str(folder),
    ]
    os.chdir(folder)  # in the repository pytest would load its conftest, and what that imports
    failed = pytest.main(options)
    print(json.dumps({**counts, "tests failed": int(failed)}))


if __name__ == "__main__":
    main()
