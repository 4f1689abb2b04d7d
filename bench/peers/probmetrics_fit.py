"""Runs in the environment of probmetrics: fit its calibrators of several classes to training rows, and score test rows.

python probmetrics_fit.py INPUT.npz OUTPUT.npz METHOD[,METHOD] THREADS

INPUT has ``train`` and ``test`` (probabilities) and ``y``; OUTPUT receives the test probabilities by method. Prints the
wall-clock and CPU seconds of each fit as JSON.
"""

import json
import sys
import time
import warnings

import numpy as np
import torch
from probmetrics.calibrators import get_calibrator

warnings.simplefilter("ignore")
torch.set_num_threads(int(sys.argv[4]))
rows = np.load(sys.argv[1])
corrected, seconds = {}, {}
for method in sys.argv[3].split(","):
    wall, cpu = time.perf_counter(), time.process_time()
    fitted = get_calibrator(method).fit(rows["train"], rows["y"])
    seconds[method] = [time.perf_counter() - wall, time.process_time() - cpu]
    corrected[method] = np.asarray(fitted.predict_proba(rows["test"]))
np.savez(sys.argv[2], **corrected)
print(json.dumps(seconds))
