"""Isotonic regression of 1,000,000 rows, fit and predict, beside scikit-learn in the same run on the same rows.

python bench/isotonic.py

trueup's fit also checks the data, judges itself before and after, and finds what it corrected; scikit-learn's fits.
"""

from __future__ import annotations

import numpy as np
from sklearn.isotonic import IsotonicRegression

import trueup as tu
from common import check, save, seconds

ROWS = 1_000_000
FASTER = 1.0  # at least as fast
REPEAT = 7


def main() -> None:
    random = np.random.default_rng(0)
    p = random.beta(2, 5, ROWS)
    y = (random.random(ROWS) < p**1.3).astype(float)
    w = random.uniform(0.5, 2.0, ROWS)
    tied = np.round(p, 2)
    cases = {"distinct scores": (p, None), "ties": (tied, None), "weights": (p, w), "ties and weights": (tied, w)}
    figures, checks = {}, {}
    for name, (scores, weight) in cases.items():
        ours, theirs = tu.Isotonic(), IsotonicRegression(out_of_bounds="clip")
        ours.fit(scores, y, weight)  # compiled before it is timed
        theirs.fit(scores, y, weight)
        found = {
            "fit_s": seconds(lambda o=ours, s=scores, v=weight: o.fit(s, y, v), REPEAT),
            "sklearn_fit_s": seconds(lambda o=theirs, s=scores, v=weight: o.fit(s, y, v), REPEAT),
            "predict_s": seconds(lambda o=ours, s=scores: o.predict(s), REPEAT),
            "sklearn_predict_s": seconds(lambda o=theirs, s=scores: o.predict(s), REPEAT),
            "difference": float(np.abs(ours.predict(scores) - theirs.predict(scores)).max()),
        }
        figures[name] = found
        for what in ("fit", "predict"):
            ratio = found[f"sklearn_{what}_s"] / found[f"{what}_s"]
            label = f"{what}, {name}: times faster than scikit-learn"
            checks[label] = check(label, ratio, FASTER, at_most=False)
        label = f"{name}: largest difference to scikit-learn"
        checks[label] = check(label, found["difference"], 1e-12, at_most=True)
    save("isotonic", {"rows": ROWS, "figures": figures, "checks": checks})


if __name__ == "__main__":
    main()
