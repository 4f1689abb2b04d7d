"""Runs in mcgrad's environment: fit and score cases, or measure its multicalibration error of given predictions.

python mcgrad_fit.py fit OUT CASE...          (predictions for the test rows and the times, one .npz a case under OUT)
python mcgrad_fit.py sigma PREDICTIONS CASE ...   (its MulticalibrationError of every array in an .npz of test predictions)
python mcgrad_fit.py chance PREDICTIONS CASE ...  (the same of outcomes that are drawn from the first array)
python mcgrad_fit.py score CASE ROWS REPEAT   (time of batch and one-row scoring)
python mcgrad_fit.py time CASE                (time of a fit)
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from mcgrad.methods import MCGrad
from mcgrad.metrics import MulticalibrationError


def parts(path):
    frame = pd.read_parquet(path)
    names = [name for name in frame.columns if name not in ("p", "y", "part")]
    categorical = [name for name in names if not pd.api.types.is_numeric_dtype(frame[name])]
    roles = {
        "categorical_feature_column_names": categorical,
        "numerical_feature_column_names": [name for name in names if name not in categorical],
    }
    split = [frame[frame["part"] == part].reset_index(drop=True) for part in ("calibration", "test")]
    return *split, roles


def fit(train, roles):
    model = MCGrad(random_state=42)
    start = time.perf_counter()
    model.fit(train, prediction_column_name="p", label_column_name="y", **roles)
    return model, time.perf_counter() - start


def fit_all(out, paths):
    for path in map(Path, paths):
        place = Path(out) / f"{path.stem}.npz"
        if place.exists():
            continue
        train, test, roles = parts(path)
        model, fitting = fit(train, roles)
        start = time.perf_counter()
        p = model.predict(test, prediction_column_name="p", **roles)
        scoring = time.perf_counter() - start
        found = {"fit": fitting, "score": scoring, "rounds": len(model.mr), "peak": peak()}
        np.savez(place, p=p, **{key: np.array(value) for key, value in found.items()})
        print(path.stem, found, file=sys.stderr, flush=True)
    return {"done": len(paths)}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def chance(*pairs):
    """Measure the first array of each .npz against outcomes drawn from it, as if it were calibrated."""
    return sigma(*pairs, drawn=True)


def sigma(*pairs, drawn=False):
    """Measure every array of each .npz of test predictions; pairs of PREDICTIONS and CASE."""
    found = []
    for predictions, path in zip(pairs[::2], pairs[1::2], strict=True):
        _, test, roles = parts(path)
        found.append({})
        for name, p in np.load(predictions).items():
            test["p"] = p
            if drawn:
                test["y"] = (np.random.default_rng(5).random(len(p)) < p).astype(int)
            audit = MulticalibrationError(
                df=test, label_column="y", score_column="p",
                categorical_segment_columns=roles["categorical_feature_column_names"],
                numerical_segment_columns=roles["numerical_feature_column_names"],
            )  # fmt: skip
            found[-1][name] = float(audit.mce_sigma)
    return found


def score(path, rows, repeat):
    train, test, roles = parts(path)
    model, fitting = fit(train, roles)
    held = peak()
    batch = pd.concat([test] * (int(rows) // len(test) + 1), ignore_index=True).iloc[: int(rows)]
    one = batch.iloc[:1]

    def best(frame, times):
        taken = []
        for _ in range(times):
            start = time.perf_counter()
            model.predict(frame, prediction_column_name="p", **roles)
            taken.append(time.perf_counter() - start)
        return taken

    batches = best(batch, int(repeat))
    ones = best(one, 200)
    return {"fit": fitting, "batch": min(batches), "one": float(np.median(ones)), "rounds": len(model.mr), "peak": held}


def time_fit(path):
    train, _, roles = parts(path)
    return fit(train, roles)[1]


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    if mode == "fit":
        result = fit_all(rest[0], rest[1:])
    else:
        result = {"sigma": sigma, "chance": chance, "score": score, "time": time_fit}[mode](*rest)
    print(json.dumps(result))
