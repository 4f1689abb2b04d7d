"""Import every model that mcgrad's own tests predict with, and compare the scores.

    python bench/imports.py

mcgrad 0.1.5 runs its tests in an environment of its own; `tu.load_mcgrad` reads the models here and scores the same rows.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import trueup as tu
from common import check, peer, run_peer, save
from trueup.errors import FileError, ImportedModelWarning, TrueupWarning


def compare(path: Path) -> tuple[int, float]:
    """Return the rows with a score, and the largest difference, relative to scores above 1."""
    content = json.loads(path.read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportedModelWarning)
        warnings.simplefilter("ignore", TrueupWarning)
        model = tu.load_mcgrad(content["model"], prediction=content["prediction"])
        found = model.predict(pd.read_pickle(path.with_suffix(".pickle")), on_error="nan")
    expected = np.array(content["scores"], float)
    known = ~np.isnan(expected)
    difference = np.abs(found - expected)[known] / np.maximum(1.0, np.abs(expected[known]))
    return int(known.sum()), float(np.max(np.nan_to_num(difference, nan=np.inf), initial=0.0))


def main() -> None:
    python = peer("mcgrad")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "pytest"], check=True)
    figures: dict[str, Any] = {"refused": Counter(), "rows": 0, "largest difference": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        figures["peer"] = run_peer("mcgrad", "mcgrad_tests.py", folder)
        for path in sorted(Path(folder).glob("*.json")):
            try:
                rows, difference = compare(path)
            except FileError as error:
                figures["refused"][error.message] += 1
                continue
            figures["rows"] += rows
            figures["largest difference"] = max(figures["largest difference"], difference)
    print(figures)
    imported = figures["peer"]["models"] - sum(figures["refused"].values())
    difference = figures["largest difference"]
    figures["checks"] = {
        "imported, share of models": check(
            "imported, share of models", imported / figures["peer"]["models"], 0.95, at_most=False
        ),
        "largest difference of a score": check("largest difference of a score", difference, 1e-12, at_most=True),
    }
    save("imports", figures)


if __name__ == "__main__":
    main()
