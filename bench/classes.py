"""Several classes: log loss, Brier score and time of trueup and of probmetrics on networks of 10 and of 100 classes.

    python bench/classes.py [--seeds 6] [--only wrn16] [--times]

With --only, the other settings are those of the last run; with --times, only the times for 5,000 rows of 100 classes are
measured again.

*CIFAR-10*: softmax outputs of three networks for 10,000 test images; 5,000 of them fit, the others test. A seed is a random
split; splits share images. *100 classes*: simulated logits of an overconfident network, 5,000 or 20,000 rows fit, 20,000
test. The network confuses classes of one group of five, and its confidence, its bias and its noise differ per class; a seed
is a new network. probmetrics has temperature scaling with its uniform mixture (ts-mix), structured vector scaling (svs) and
structured matrix scaling (sms, its default); both packages fit the same rows and score the same rows. Differences are from
the method of probmetrics with the lowest mean loss in the setting, those of ts-mix are the fair comparison for
`Temperature`; they are paired by test row. Their standard error counts an image that several splits test once; that between
seeds is smaller where splits share images, and is in the results, too. Times are of the fit: `MCGrad` and
`Auto` with two threads, BLAS with one. A third of the seeds (at least two) for 100 classes; trees take minutes per fit of
20,000 rows and are left out there.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from scipy.special import softmax

import trueup as tu
from cases import DATA
from common import RESULTS, check, run_peer, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

THREADS = 2
NETS = ("vgg16", "wrn16_4", "lenet5")
CIFAR_ROWS, SIMULATED_ROWS, TEST_ROWS = 5000, (5000, 20_000), 20_000
CLASSES, GROUP = 100, 5
PEER_METHODS = ("ts-mix", "svs", "sms")
METHODS: dict[str, Callable[[], Any]] = {
    "Temperature": tu.Temperature,
    "MatrixScaling": tu.MatrixScaling,
    "MCGrad": lambda: tu.MCGrad(threads=THREADS),
    "Auto": lambda: tu.Auto(threads=THREADS),
}
MEASURES = ("log loss", "Brier")
LIMITS = {"MCGrad": 20.0, "Auto": 60.0}  # CPU seconds, which no idle machine exceeds, for 5,000 rows of 100 classes
MAX_VALUES = 1_000_000  # of the rows to fit, times classes: beyond, methods with trees are left out
MAX_ERRORS = 2.0  # standard errors above the best of probmetrics
RECOMMENDED = ("MatrixScaling", "Auto")  # for scores of several classes without features


class Rows(NamedTuple):
    """Probabilities and outcomes of the rows to fit and of the rows to test."""

    train: Floats
    y: NDArray[np.int64]
    test: Floats
    y_test: NDArray[np.int64]
    images: NDArray[np.int64]  # the number of each test row, the same in all seeds that test it


def split_cifar(frame: pd.DataFrame, net: str, n: int, seed: int) -> Rows:
    """Split the images of a network at random."""
    p = frame[[f"{net}_p{number}" for number in range(10)]].to_numpy(np.float64)
    p, y = p / p.sum(axis=1, keepdims=True), frame["label"].to_numpy(np.int64)
    order = np.random.default_rng([seed, 7]).permutation(len(p))
    train, test = order[:n], order[n:]
    return Rows(p[train], y[train], p[test], y[test], test)


def simulate_network(n: int, seed: int) -> Rows:
    """Simulate logits of an overconfident network whose errors differ per class, and outcomes."""
    random = np.random.default_rng([seed, CLASSES])
    rows, group = n + TEST_ROWS, np.arange(CLASSES) // GROUP
    y = random.integers(0, CLASSES, rows)
    difficulty = np.exp(0.3 * random.normal(size=CLASSES))  # of the images of a class
    evidence = 4.6 + 2.4 * random.normal(size=rows)
    margin = np.maximum(evidence / difficulty[y], 0.0)
    Z = random.normal(size=(rows, CLASSES)) + 1.6 * random.normal(size=(rows, CLASSES // GROUP))[:, group]
    Z += 1.5 * (group == group[y][:, None])  # images of a group are alike
    Z[np.arange(rows), y] += margin
    slope, bias = np.exp(0.15 * random.normal(size=CLASSES)), 0.6 * random.normal(size=CLASSES)
    confusion = np.eye(CLASSES) + 0.15 * random.normal(size=(CLASSES, CLASSES)) * (group == group[:, None])
    P = softmax(1.8 * slope * (Z @ confusion.T) + bias, axis=1)
    return Rows(P[:n], y[:n], P[n:], y[n:], seed * TEST_ROWS + np.arange(TEST_ROWS))


def evaluate(P: Floats, y: NDArray[np.int64]) -> dict[str, Any]:
    """Return the loss of each row per measure."""
    own = P[np.arange(len(y)), y]
    losses = {"log loss": -np.log(own), "Brier": (P**2).sum(axis=1) - 2 * own + 1}
    means = {"log loss": tu.metrics.log_loss(y, P), "Brier": tu.metrics.brier(y, P)}
    assert all(np.isclose(losses[measure].mean(), mean) for measure, mean in means.items())
    return losses


def run_seed(rows: Rows) -> dict[str, dict[str, Any]]:
    """Fit all methods to the rows of a seed; return losses of the test rows and times."""
    results: dict[str, dict[str, Any]] = {"none": evaluate(rows.test, rows.y_test)}
    for name, make in METHODS.items():
        if rows.train.size > MAX_VALUES and name in LIMITS:
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        fitted = make().fit(rows.train, rows.y)
        times = {"seconds": time.perf_counter() - wall, "CPU seconds": time.process_time() - cpu}
        results[name] = evaluate(fitted.predict(rows.test), rows.y_test) | times
        if name == "Auto":
            results[name]["choice"] = fitted.choice_.method
    with tempfile.TemporaryDirectory() as directory:
        given, returned = Path(directory) / "given.npz", Path(directory) / "returned.npz"
        np.savez(given, train=rows.train, test=rows.test, y=rows.y)
        arguments = (str(given), str(returned), ",".join(PEER_METHODS), str(THREADS))
        times = run_peer("probmetrics", "probmetrics_fit.py", *arguments)
        with np.load(returned) as corrected:
            for method, (wall, cpu) in times.items():
                own = evaluate(corrected[method], rows.y_test)
                results[f"probmetrics {method}"] = own | {"seconds": wall, "CPU seconds": cpu}
    return results


def summarise(seeds: list[dict[str, dict[str, Any]]], images: NDArray[np.int64]) -> dict[str, Any]:
    """Return means over seeds, and paired differences from the best method of probmetrics; ``images`` has those tested."""
    cells: dict[str, Any] = {}
    values = {
        name: {measure: np.array([seed[name][measure] for seed in seeds]) for measure in MEASURES} for name in seeds[0]
    }
    _, image = np.unique(images, return_inverse=True)
    peers = [name for name in values if name.startswith("probmetrics")]
    best = {measure: min(peers, key=lambda name: float(values[name][measure].mean())) for measure in MEASURES}
    for name, own in values.items():
        cell: dict[str, Any] = {}
        for measure in MEASURES:
            difference = own[measure] - values[best[measure]][measure]
            between = float(difference.mean(axis=1).std(ddof=1) / np.sqrt(len(seeds)))
            sums = np.bincount(image.ravel(), (difference - difference.mean()).ravel())  # of all rows of an image
            cell[measure] = {
                "mean": float(own[measure].mean()), "behind": float(difference.mean()),
                "error": float(np.sqrt((sums**2).sum()) / difference.size), "error between seeds": between,
            }  # fmt: skip
        for kind in ("seconds", "CPU seconds"):
            if kind in seeds[0][name]:
                cell[kind] = float(np.median([seed[name][kind] for seed in seeds]))
        if name == "Auto":
            chosen = [seed[name]["choice"] for seed in seeds]
            cell["choices"] = {choice: chosen.count(choice) for choice in dict.fromkeys(chosen)}
        cells[name] = cell
    return {"best of probmetrics": best, "methods": cells}


def settings() -> Iterator[tuple[str, int, Callable[[int], Rows]]]:
    """Yield the name of each setting, its number of rows, and the rows of a seed."""
    frame = pd.read_parquet(DATA / "cifar10_test_probs.parquet")
    for net in NETS:
        yield f"CIFAR-10, {net}", CIFAR_ROWS, lambda seed, net=net: split_cifar(frame, net, CIFAR_ROWS, seed)  # type: ignore[misc]
    for n in SIMULATED_ROWS:
        yield "100 classes", n, lambda seed, n=n: simulate_network(n, seed)  # type: ignore[misc]


def show(title: str, found: dict[str, Any]) -> None:
    """Print a setting."""
    print(title, flush=True)
    for name, cell in found["methods"].items():
        losses = "  ".join(
            f"{measure} {cell[measure]['mean']:.5f} ({cell[measure]['behind']:+.5f}, s.e. {cell[measure]['error']:.5f})"
            for measure in MEASURES
        )
        times = f"{cell['seconds']:.2f} s, CPU {cell['CPU seconds']:.2f} s" if "seconds" in cell else ""
        print(f"  {name:<20} {losses}  {times}  {cell.get('choices', '')}", flush=True)


def errors_above(found: list[dict[str, Any]], methods: tuple[str, ...], error: str = "error") -> list[tuple[float, str]]:
    """Return how many standard errors methods are above the best of probmetrics, with the name of each comparison."""
    return [
        (cell[measure]["behind"] / cell[measure][error], f"{one['setting']}, {one['rows']:,} rows, {name}, {measure}")
        for one in found
        for name, cell in one["methods"].items()
        for measure in MEASURES
        if name in methods and cell[measure][error]
    ]


def write(found: list[dict[str, Any]]) -> None:
    """Write all settings, with what holds."""
    between, _ = max(errors_above(found, RECOMMENDED, "error between seeds"))
    print(f"with standard errors between seeds: {between:.2f}")
    checks: dict[str, Any] = {}
    for methods in (RECOMMENDED, ("MCGrad",)):
        title = f"standard errors of {' and '.join(methods)} above the best of probmetrics"
        checks[title] = check(title, max(errors_above(found, methods))[0], MAX_ERRORS, at_most=True)
    worst = max(errors_above(found, RECOMMENDED))[1]
    print(f"the most standard errors above the best of probmetrics: {worst}")
    for one in found:
        if one["setting"] == "100 classes" and one["rows"] == SIMULATED_ROWS[0]:
            for name, limit in LIMITS.items():
                title = f"CPU seconds of {name}, {one['rows']:,} rows, 100 classes"
                checks[title] = check(title, one["methods"][name]["CPU seconds"], limit, at_most=True)
    save("classes", {"settings": found, "worst": worst, "worst between seeds": between, "checks": checks})


def measure_times(seeds: int) -> None:
    """Measure the times of 5,000 rows of 100 classes again; the losses stay those of the last run."""
    found = json.loads((RESULTS / "classes.json").read_text())["settings"]
    own = next(one for one in found if one["setting"] == "100 classes" and one["rows"] == SIMULATED_ROWS[0])
    for name in ("Temperature", "MatrixScaling", *LIMITS):
        times = []
        for seed in range(seeds):
            rows = simulate_network(SIMULATED_ROWS[0], seed)
            wall, cpu = time.perf_counter(), time.process_time()
            fitted = METHODS[name]().fit(rows.train, rows.y)
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
            loss = tu.metrics.log_loss(rows.y_test, fitted.predict(rows.test))
            print(f"  {name}, seed {seed}: {times[-1][0]:.2f} s, CPU {times[-1][1]:.2f} s, log loss {loss:.4f}", flush=True)
        own["methods"][name] |= dict(zip(("seconds", "CPU seconds"), np.median(times, axis=0).tolist(), strict=True))
    write(found)


def main() -> None:
    """Run all settings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    METHODS["Auto"]().fit(
        *split_cifar(pd.read_parquet(DATA / "cifar10_test_probs.parquet"), NETS[0], 500, 0)[:2]
    )  # compile
    if arguments.times:
        measure_times(max(2, arguments.seeds // 3))
        return
    found: list[dict[str, Any]] = []
    for name, n, make in settings():
        if arguments.only and arguments.only not in f"{name} {n}":
            continue
        count = arguments.seeds if name != "100 classes" else max(2, arguments.seeds // 3)
        rows = [make(seed) for seed in range(count)]
        summary = summarise([run_seed(own) for own in rows], np.stack([own.images for own in rows]))
        show(f"{name}, {n:,} rows, {count} seeds", summary)
        found.append({"setting": name, "rows": n, "seeds": count, **summary})
    if arguments.only and (RESULTS / "classes.json").exists():
        last = json.loads((RESULTS / "classes.json").read_text())["settings"]
        again = {(one["setting"], one["rows"]): one for one in found}
        found = [again.get((one["setting"], one["rows"]), one) for one in last]
    write(found)


if __name__ == "__main__":
    main()
