"""LSBoost on census incomes beside scikit-learn's GradientBoostingRegressor, and LightGBM's stumps on one thread.

After Figures 3 and 6 and Table 2 of Globus-Harris et al. (2023).

    python bench/lsboost.py [--learners 1000] [--only time]
    python bench/lsboost.py --stumps
    python bench/lsboost.py --rows 6000

Income of acs_mobility_2018, which has persons of 19 to 34 years only, capped at 100,000 and scaled to [0, 1]; 80% of the
rows to learn from, 20% to test. Test error and mean squared calibration error by round, trees of depth 1 to 3, and lines;
then the time to train as many weak learners, as a ratio in one run on the same rows. One round of LSBoost trains a
learner on every level set. Test error as a function of training time (Figure 6): ``--only time`` measures that alone and
keeps the other figures. GradientBoostingRegressor grows exact trees; --stumps adds the comparison with a histogram
learner, LightGBM's stumps, in CPU seconds of one thread, and the ages of the rows, to the results there are. With --rows,
the figures are those of fewer rows, and do not replace those of full runs.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import GradientBoostingRegressor

import trueup as tu
from cases import DATA
from common import QUICK, RESULTS, check, save

FEATURES = ["AGEP", "COW", "SCHL", "MAR", "RELP", "WKHP", "SEX", "RAC1P", "NATIVITY", "ESR"]
CAP = 100_000
ROUNDS = 100
LEVELS = (50, 100, 300)
COUNTS = (100, 300, 500, 1000)
REPEATS = 3  # of a fit that is timed: the fastest counts
SHOWN = (1, 2, 5, 10, 20, 50, 100)
PAPER = {1: 116.49 / 32.80, 2: 231.74 / 36.61, 3: 336.89 / 27.12}  # 1,000 learners, 300 level sets


def persons(rows: int | None = None) -> pd.DataFrame:
    """Read the persons with an income, or so many of them."""
    frame = pd.read_parquet(DATA / "acs_mobility_2018.parquet").dropna(subset=["PINCP"])
    return frame if rows is None else frame.sample(rows, random_state=0)


def census(rows: int | None = None) -> tuple[Any, Any, Any, Any]:
    """Give training and test features as numbers (codes where they are texts), and incomes."""
    frame = persons(rows)
    X = np.column_stack(
        [pd.to_numeric(frame[name].astype(str), errors="coerce").fillna(-1).to_numpy(float) for name in FEATURES]
    )
    y = frame["PINCP"].clip(0, CAP).to_numpy(float) / CAP
    held = np.random.default_rng(0).random(len(y)) < 0.2
    return X[~held], X[held], y[~held], y[held]


def lsboost(levels: int, rounds: int, **own: Any) -> tu.LSBoost:
    """Make the paper's LSBoost: equal levels, full steps, no gate, until the training error no longer falls."""
    return tu.LSBoost.as_published(levels=levels, rounds=rounds, min_rows=20, bins=255, limits=(0.0, 1.0), **own)


def errors(p: Any, y: Any, levels: int) -> dict[str, float]:
    """Measure predictions; their calibration error once they are rounded to the levels."""
    f = tu.metrics.discretize(p, levels)
    return {"mse": float(np.mean((p - y) ** 2)), "msce": tu.metrics.msce(y, f)}


def by_round(X: Any, Z: Any, y: Any, z: Any) -> dict[str, Any]:
    """Figure 3 and Figure 5: test errors by round, both methods, 50 levels."""
    found: dict[str, Any] = {}
    for name, own in {
        "DT(1)": {"depth": 1},
        "DT(2)": {"depth": 2},
        "DT(3)": {"depth": 3},
        "LR": {"learner": "linear"},
    }.items():
        fix = lsboost(50, ROUNDS, **own).fit(X, y)
        ours = [errors(p, z, 50) for p in fix.staged_predict(Z)]
        last = len(ours) - 1
        cell: dict[str, Any] = {"rounds": last, "lsboost": {str(at): ours[min(at, last)] for at in SHOWN}}
        if "depth" in own:
            peer = GradientBoostingRegressor(max_depth=own["depth"], n_estimators=ROUNDS, random_state=0).fit(X, y)
            theirs = [errors(p, z, 50) for p in peer.staged_predict(Z)]
            cell["gradient boosting"] = {str(at): theirs[at - 1] for at in SHOWN}
            cell["rounds_below"] = sum(ours[min(at, last)]["mse"] < theirs[at - 1]["mse"] for at in range(1, ROUNDS + 1))
            cell["msce_ratio"] = theirs[-1]["msce"] / ours[last]["msce"]
        default = tu.LSBoost(**own).fit(X, y)
        cell["default"] = {**errors(default.predict(Z), z, 50), "rounds": default.history_.chosen}
        found[name] = cell
        print(name, "rounds", last, "test", ours[last], "peer", cell.get("gradient boosting", {}).get("100"),
              "default", cell["default"], flush=True)  # fmt: skip
    return found


def peer_times(X: Any, y: Any, depth: int, most: int) -> dict[str, float]:
    """Time gradient boosting at each number of trees of one fit."""
    start, found = time.perf_counter(), {}

    def monitor(at: int, *_: Any) -> bool:
        if at + 1 in COUNTS:
            found[str(at + 1)] = time.perf_counter() - start
        return at + 1 >= most

    GradientBoostingRegressor(max_depth=depth, n_estimators=most, random_state=0).fit(X, y, monitor=monitor)
    return found


def our_times(X: Any, y: Any, depth: int, levels: int, most: int) -> dict[str, Any]:
    """Time LSBoost at the round in which so many learners are trained: the whole fit, from the array on."""
    fix = lsboost(levels, 10_000, depth=depth).fit(X, y)
    trained = np.cumsum([one.trees for one in fix.history_.rounds])
    found: dict[str, Any] = {"rounds_in_all": fix.history_.chosen, "learners_in_all": int(trained[-1])}
    for many in (count for count in COUNTS if count <= most):
        rounds = int(np.searchsorted(trained, many))
        if rounds >= len(trained):
            continue
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            lsboost(levels, rounds, depth=depth).fit(X, y)
            times.append(time.perf_counter() - start)
        found[str(many)] = {"seconds": min(times), "rounds": rounds, "learners": int(trained[rounds])}
    return found


def add_stumps(learners: int, sample: int | None = None) -> None:
    """Write to the results the CPU seconds of LightGBM's stumps and of ours, one thread each, and the ages of the rows."""
    import lightgbm as lgb

    def cpu_seconds(fit: Any) -> float:
        times = []
        for _ in range(3):
            start = time.process_time()
            fit()
            times.append(time.process_time() - start)
        return min(times)

    X, _, y, _ = census(sample)
    age = persons(sample)["AGEP"].astype(float)
    peer = lgb.LGBMRegressor(
        n_estimators=learners, num_leaves=2, max_depth=1, learning_rate=0.1, n_jobs=1, force_col_wise=True, verbose=-1
    )
    theirs, cells = cpu_seconds(lambda: peer.fit(X, y)), {}
    for levels in LEVELS:
        fix = lsboost(levels, 10_000, depth=1, threads=1).fit(X, y)
        rounds = int(np.searchsorted(np.cumsum([one.trees for one in fix.history_.rounds]), learners))
        fix = lsboost(levels, rounds, depth=1, threads=1)
        ours = cpu_seconds(lambda fix=fix: fix.fit(X, y))
        cells[str(levels)] = {"cpu_seconds": ours, "rounds": rounds, "ratio": theirs / ours}
        print(f"{levels} levels: {ours:.2f} s, LightGBM's stumps {theirs:.2f} s, ratio {theirs / ours:.1f}", flush=True)
    path = RESULTS / "lsboost.json"
    found = json.loads(path.read_text())
    found["ages"] = [int(age.min()), int(age.max())]
    found["stumps"] = {"learners": learners, "lightgbm": lgb.__version__, "cpu_seconds": theirs, "levels": cells}
    path.write_text(json.dumps(found, indent=2) + "\n")


def by_time(X: Any, Z: Any, y: Any, z: Any) -> dict[str, Any]:
    """Figure 6: seconds of training and test error, LSBoost after some rounds and gradient boosting after some trees."""
    found: dict[str, Any] = {}
    for depth in (1, 2, 3):
        ours, theirs = [], []
        for rounds in SHOWN:
            times = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                fix = lsboost(50, rounds, depth=depth).fit(X, y)
                times.append(time.perf_counter() - start)
            error = float(np.mean((fix.predict(Z) - z) ** 2))
            ours.append({"rounds": fix.history_.chosen, "seconds": min(times), "mse": error})
        ends = np.full((REPEATS, ROUNDS), np.nan)
        for repeat in range(REPEATS):
            start = time.perf_counter()

            def monitor(at: int, *_: Any) -> None:
                ends[repeat, at] = time.perf_counter() - start  # noqa: B023

            peer = GradientBoostingRegressor(max_depth=depth, n_estimators=ROUNDS, random_state=0)
            peer.fit(X, y, monitor=monitor)
        for at, p in enumerate(peer.staged_predict(Z), 1):
            if at in SHOWN:
                error = float(np.mean((p - z) ** 2))
                theirs.append({"trees": at, "seconds": float(ends[:, at - 1].min()), "mse": error})
        found[f"DT({depth})"] = {"lsboost": ours, "gradient boosting": theirs}
        print(depth, ours, theirs, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--learners", type=int, default=1000)
    parser.add_argument("--stumps", action="store_true", help="only LightGBM's stumps beside ours, and the ages")
    parser.add_argument("--only", choices=["time"])
    parser.add_argument("--rows", type=int, help="use so many rows")
    arguments = parser.parse_args()
    if arguments.stumps:
        add_stumps(arguments.learners, arguments.rows)
        return
    X, Z, y, z = census(arguments.rows)
    lsboost(50, 2, depth=1).fit(X[:1000], y[:1000])  # compiled once, as the peer is
    if arguments.only:
        earlier = json.loads((RESULTS / "lsboost.json").read_text())
        save("lsboost", {**earlier, "by_time": by_time(X, Z, y, z)})
        return
    figures: dict[str, Any] = {"rows": len(y), "test_rows": len(z), "times": {}, "checks": {}}
    figures["by_round"] = by_round(X, Z, y, z)
    figures["by_time"] = by_time(X, Z, y, z)
    for depth in (1, 2, 3):
        theirs = peer_times(X, y, depth, arguments.learners)
        cell = {"gradient boosting": theirs}
        for levels in LEVELS:
            ours = our_times(X, y, depth, levels, arguments.learners)
            ours["ratio"] = {many: theirs[many] / ours[many]["seconds"] for many in theirs if many in ours}
            cell[f"{levels} levels"] = ours
            print(depth, levels, ours, theirs, flush=True)
        figures["times"][f"DT({depth})"] = cell
        best = max(cell[f"{levels} levels"]["ratio"].get(str(arguments.learners), 0.0) for levels in LEVELS)
        figures["checks"][f"time ratio at {arguments.learners} learners, depth {depth}"] = check(
            f"time ratio, depth {depth} (the paper's was {PAPER[depth]:.1f})", best, 12.0, at_most=False
        )
    one = figures["by_round"]["DT(1)"]
    figures["checks"]["rounds of 100 below gradient boosting in test MSE, depth 1"] = check(
        "rounds below", one["rounds_below"], 100, at_most=False
    )
    figures["checks"]["MSCE of gradient boosting over ours after 100 rounds, depth 1"] = check(
        "MSCE ratio", one["msce_ratio"], 1.0, at_most=False
    )
    if arguments.learners == 1000 and (QUICK or not arguments.rows):
        save("lsboost", figures)
        add_stumps(arguments.learners, arguments.rows)


if __name__ == "__main__":
    main()
