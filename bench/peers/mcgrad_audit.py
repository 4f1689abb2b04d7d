"""Runs in mcgrad's environment: time its audit of a Parquet file, or give the sigma of each segment.

python mcgrad_audit.py time DATA CATEGORICAL NUMERICAL REPEAT
python mcgrad_audit.py sigma DATA CATEGORICAL
python mcgrad_audit.py null REPETITIONS    (calibrated data: how often its rule p < 0.05 fires)
"""

import json
import sys
import time

import numpy as np
import pandas as pd
from mcgrad.metrics import MulticalibrationError


def audit_time(path, categorical, numerical, repeat):
    frame = pd.read_parquet(path)
    times = []
    for _ in range(int(repeat)):
        start = time.perf_counter()
        audit = MulticalibrationError(
            df=frame, label_column="y", score_column="p",
            categorical_segment_columns=categorical.split(","), numerical_segment_columns=numerical.split(","),
        )  # fmt: skip
        sigma, pvalue = float(audit.mce_sigma), float(audit.mce_pvalue)
        times.append(time.perf_counter() - start)
    found = {"seconds": min(times), "segments": int(audit.total_number_segments)}
    return {**found, "mce_sigma": sigma, "mce_pvalue": pvalue}


def segment_sigmas(path, categorical):
    audit = MulticalibrationError(
        df=pd.read_parquet(path), label_column="y", score_column="p", categorical_segment_columns=categorical.split(","),
        max_depth=2, max_values_per_segment_feature=10_000, min_samples_per_segment=50, max_n_segments=None,
        precision_dtype="float64",
    )  # fmt: skip
    sigmas = audit.segments_ecce_sigma
    names = {}
    for at, rows in audit._segments[1].groupby("idx_segment"):
        names[int(at)] = " & ".join(f"{c}={v}" for c, v in zip(rows["segment_column"], rows["value"], strict=True))
    return {names.get(at, "all rows"): float(sigma) for at, sigma in enumerate(sigmas)}


def null(repetitions):
    fired, segments = 0, 0
    for seed in range(int(repetitions)):
        random = np.random.default_rng(seed)
        p = random.beta(2, 6, 3000)
        columns = {f"c{j}": random.choice(["a", "b", "c"], 3000) for j in range(5)}
        frame = pd.DataFrame({**columns, "p": p, "y": (random.random(3000) < p).astype(int)})
        audit = MulticalibrationError(
            df=frame, label_column="y", score_column="p", categorical_segment_columns=list(columns)
        )
        fired += bool(audit.mce_pvalue < 0.05)
        segments = int(audit.total_number_segments)
    return {"fired": fired, "repetitions": int(repetitions), "segments": segments}


if __name__ == "__main__":
    verb = {"time": audit_time, "sigma": segment_sigmas, "null": null}[sys.argv[1]]
    print(json.dumps(verb(*sys.argv[2:])))
