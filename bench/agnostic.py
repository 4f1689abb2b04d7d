"""Calibration in the agnostic setting: Figures 2 and 3 and Table 1 of Gao, Parameswaran & Peng (2017).

    python bench/agnostic.py [--quick]

Five models on adult and covertype, as in section 4 of the paper: the empirical calibration error c_emp of each on test rows
(Figure 2), and the ratio of its average loss after isotonic regression on 2,000 rows to that before, where a false negative
costs 1 - p, a false positive p, and the threshold is p (Figure 3). Held-out scores of fitted models are kept in
.bench/agnostic; bench/roc.py uses them, too.

Table 1: documents from a latent Dirichlet allocation, whose conditional probabilities are known. Logistic regression on
word counts has a large l1 error and a small c_emp.

Published figures are constants here. Where the paper does not state a setting, ours is named below, and variants show how
much it matters.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.stats import spearmanr
from sklearn.compose import make_column_transformer
from sklearn.ensemble import AdaBoostClassifier, RandomForestClassifier
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

import trueup as tu
from cases import DATA, SOURCES
from common import ENVIRONMENTS, QUICK, check, save

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA_SETS = ("adult", "covertype")
MODELS = ("naive Bayes", "boosted trees", "SVM", "logistic regression", "random forest")
# The paper names the models, not their settings: others, to show how much these matter.
VARIANTS = {
    "naive Bayes, normal densities": "naive Bayes", "boosted stumps": "boosted trees",
    "boosted trees of depth 8": "boosted trees", "SVM, Gaussian kernel": "SVM",
}  # fmt: skip
DEPTHS = {"boosted stumps": 1, "boosted trees": 3, "boosted trees of depth 8": 8}
RESCALED = (*DEPTHS, "SVM", "SVM, Gaussian kernel")  # (score - min) / (max - min), as in footnote 7 of the paper
ALIKE, UNLIKE = ("logistic regression", "random forest"), ("boosted trees", "SVM")  # "naturally calibrated", and not
BINS = 10  # of naive Bayes, per number
LOSS_PARAMETERS = tuple(round(0.1 * k, 1) for k in range(1, 10))
MEAN_RANGE = 2 * math.sqrt(2 / math.pi)  # of Brownian motion on [0, 1]
# Section 4: "on average reduces the cost by 3%-5% for naive Bayes and random forest, 20% for SVM, 12% for boosted trees,
# and close to 0% for logistic regression". Of Figure 2 the text has no numbers.
PUBLISHED_REDUCTION = {
    "naive Bayes": (0.03, 0.05), "boosted trees": (0.12, 0.12), "SVM": (0.20, 0.20), "logistic regression": (0.0, 0.0),
    "random forest": (0.03, 0.05),
}  # fmt: skip
PUBLISHED_ERROR = {
    "naive Bayes": "depends on the data", "boosted trees": "high", "SVM": "high", "logistic regression": "low",
    "random forest": "low",
}  # fmt: skip
TOLERANCE = 0.03  # a reduction this far from the published one counts as reproduced
# Table 1: mean and standard deviation of five runs.
PUBLISHED_DOCUMENTS = {
    "l1": (0.1270, 0.0008), "c_emp": (0.0083, 0.0003), "trivial l1": (0.2022, 0.0001), "rate": (0.3448, 0.0001),
}  # fmt: skip
TOPICS, WORDS, LENGTH, LABELS = 20, 1000, 200, 10


@dataclass(frozen=True)
class Sizes:
    """Rows, models and repetitions of one run."""

    train: int = 32_561  # of adult's own split; the other 16,281 rows are held out
    few: int = 4_000  # training rows, to show how much their number matters
    held_out: int = 16_281
    calibration: int = 2_000  # as in the paper
    validation: int = 2_000
    trees: int = 100
    fits: int = 4
    partitions: int = 5  # of the held-out rows of each fit
    documents: int = 20_000
    runs: int = 5
    topics: int = 5  # of 20 that serve as the label, one at a time
    variant_topics: int = 3


FULL = Sizes()
SMALL = Sizes(
    train=4_000,
    few=1_000,
    held_out=8_000,
    trees=20,
    fits=1,
    partitions=2,
    documents=3_000,
    runs=2,
    topics=2,
    variant_topics=1,
)


@dataclass(frozen=True)
class Partition:
    """Outcomes and scores of the rows that calibrate, of those that validate, and of the test rows."""

    calibration: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def read_features(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the features, the number of levels of each (0: a number), and the outcome; missing levels are a level."""
    source = next(one for one in SOURCES if one.name == name)
    frame = pd.read_parquet(DATA / f"{name}.parquet")
    label = frame[source.label].to_numpy()
    y = (label if source.positive is None else label == source.positive).astype(float)
    columns, levels = [], []
    for column in frame.columns.drop([source.label, *source.leave_out]):
        values = frame[column]
        if pd.api.types.is_numeric_dtype(values):
            columns.append(values.to_numpy(float))
            levels.append(0)
        else:
            codes = pd.Categorical(values).codes.astype(float) + 1
            columns.append(codes)
            levels.append(int(codes.max()) + 1)
    return np.column_stack(columns), np.array(levels), y


def make_model(name: str, levels: np.ndarray, sizes: Sizes, seed: int) -> Any:
    """Return one of the models, or a variant; settings that the paper does not state are ours."""
    codes, numbers = np.flatnonzero(levels), np.flatnonzero(levels == 0)
    if name == "naive Bayes":
        bins = KBinsDiscretizer(BINS, encode="ordinal", strategy="quantile", quantile_method="averaged_inverted_cdf")
        counts = [*levels[codes], *[BINS] * len(numbers)]
        return make_pipeline(
            make_column_transformer(("passthrough", codes), (bins, numbers)), CategoricalNB(min_categories=counts)
        )
    if name == "naive Bayes, normal densities":
        return GaussianNB()
    if name in DEPTHS:
        tree = DecisionTreeClassifier(max_depth=DEPTHS[name])
        return AdaBoostClassifier(tree, n_estimators=sizes.trees, random_state=seed)
    if name == "random forest":
        return RandomForestClassifier(sizes.trees, random_state=seed)
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), codes), (StandardScaler(), numbers))
    if name == "logistic regression":
        return make_pipeline(columns, LogisticRegression(max_iter=1000))
    support = LinearSVC(random_state=seed)
    if name == "SVM":
        return make_pipeline(columns, support)
    return make_pipeline(columns, Nystroem(gamma=0.05, n_components=300, random_state=seed), support)


def held_out_scores(data: str, model: str, seed: int, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Return outcomes and scores of held-out rows, from disk if the model has been fitted before."""
    path = (
        ENVIRONMENTS
        / "agnostic"
        / f"{data}-{model.replace(',', '').replace(' ', '-')}-{sizes.train}-{sizes.trees}-{seed}.npz"
    )
    if not path.exists():
        x, levels, y = read_features(data)
        order = np.random.default_rng([seed, 7]).permutation(len(y))
        train, rows = order[: sizes.train], order[sizes.train : sizes.train + sizes.held_out]
        fitted = make_model(model, levels, sizes, seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Bins whose width are too small")
            fitted.fit(x[train], y[train])
        if model in RESCALED:
            p = fitted.decision_function(x[rows])
            p = (p - p.min()) / (p.max() - p.min())
        else:
            p = fitted.predict_proba(x[rows])[:, 1]
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, y=y[rows], p=p)
    with np.load(path) as scores:
        return scores["y"], scores["p"]


def partitions(data: str, model: str, sizes: Sizes) -> Iterator[Partition]:
    """Yield each partition of the held-out rows of each fit."""
    for seed in range(sizes.fits):
        y, p = held_out_scores(data, model, seed, sizes)
        for repetition in range(sizes.partitions):
            order = np.random.default_rng([seed, repetition]).permutation(len(y))
            subsets = np.split(order, np.cumsum([sizes.calibration, sizes.validation]))
            yield Partition(*((y[rows], p[rows]) for rows in subsets))


def empirical_error(y: np.ndarray, p: np.ndarray) -> float:
    """Return c_emp."""
    return tu.metrics.calibration_bound(y, p).value


def expected_by_chance(p: np.ndarray) -> float:
    """Return the expected c_emp of so many rows if the scores were calibrated."""
    return MEAN_RANGE * math.sqrt(float(np.sum(p * (1 - p)))) / len(p)


def average_loss(y: np.ndarray, p: np.ndarray, parameter: float) -> float:
    """Return the average loss of predicting 1 from the parameter on: 1 - parameter per false negative, or parameter."""
    predicted = p >= parameter
    return float(np.mean(np.where(y == 1, (1 - parameter) * ~predicted, parameter * predicted)))


def measure_model(data: str, model: str, sizes: Sizes) -> dict[str, Any]:
    """Return c_emp before and after isotonic regression, and the loss ratio at each parameter."""
    before, after, chance, ratios = [], [], [], []
    for part in partitions(data, model, sizes):
        isotonic = tu.Isotonic().fit(part.calibration[1], part.calibration[0])
        y, p = part.test
        calibrated = isotonic.predict(p)
        before.append(empirical_error(y, p))
        after.append(empirical_error(y, calibrated))
        chance.append(expected_by_chance(p))
        ratios.append([average_loss(y, calibrated, t) / average_loss(y, p, t) for t in LOSS_PARAMETERS])
    by_fit = np.array(ratios).reshape(sizes.fits, sizes.partitions, -1).mean(axis=(1, 2))
    return {
        "c_emp": float(np.mean(before)), "by chance": float(np.mean(chance)), "after": float(np.mean(after)),
        "ratio": float(np.mean(ratios)), "ratio, sd over fits": float(by_fit.std(ddof=1)) if sizes.fits > 1 else 0.0,
        "ratios": dict(zip(map(str, LOSS_PARAMETERS), np.mean(ratios, axis=0).tolist(), strict=True)),
    }  # fmt: skip


def reduction_of(cells: list[dict[str, Any]]) -> float:
    """Return the mean reduction of the loss over data sets."""
    return 1 - float(np.mean([cell["ratio"] for cell in cells]))


def measure_variant(model: str, sizes: Sizes) -> dict[str, Any]:
    """Return c_emp on each data set and the mean reduction of the loss, for other settings or fewer training rows."""
    cells = {data: measure_model(data, model, sizes) for data in DATA_SETS}
    reduction = reduction_of(list(cells.values()))
    print(f"{model}, {sizes.train:,} training rows: reduction {reduction:.3f}", flush=True)
    return {"reduction": reduction, "c_emp": {data: cell["c_emp"] for data, cell in cells.items()}}


def draw_documents(count: int, topics: np.ndarray, random: np.random.Generator) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return word counts, the probability of each topic label given the document's topic mixture, and the labels."""
    mixtures = random.dirichlet(np.ones(TOPICS), count)
    probabilities = mixtures @ topics
    lengths = random.poisson(LENGTH, count)
    words = [random.multinomial(n, p / p.sum()) for n, p in zip(lengths, probabilities, strict=True)]
    labels = random.multinomial(LABELS, mixtures) > 0
    return sparse.csr_matrix(np.array(words, float)), 1 - (1 - mixtures) ** LABELS, labels


def fit_documents(
    seed: int, documents: int, label_topics: int, *, exponent: float = 1.0, penalty: float = 0.0
) -> dict[str, dict[str, float]]:
    """Fit a logistic regression per label; return its errors on the documents it was fitted on, and on as many new ones."""
    random = np.random.default_rng([seed, 17])
    power_law = np.arange(1, WORDS + 1) ** -exponent
    topics = np.array([random.permutation(power_law / power_law.sum()) for _ in range(TOPICS)])
    samples = {name: draw_documents(documents, topics, random) for name in ("training documents", "new documents")}
    words, _, labels = samples["training documents"]
    errors: dict[str, list[list[float]]] = {name: [] for name in samples}
    names = ("l1", "c_emp", "by chance", "trivial l1", "rate")
    for label in range(label_topics):
        model = LogisticRegression(C=1 / penalty if penalty else np.inf, max_iter=1000).fit(words, labels[:, label])
        rate = labels[:, label].mean()
        for name, (x, true, known) in samples.items():
            f, q, y = model.predict_proba(x)[:, 1], true[:, label], known[:, label].astype(float)
            errors[name].append(
                [np.abs(f - q).mean(), empirical_error(y, f), expected_by_chance(f), np.abs(rate - q).mean(), y.mean()]
            )
    return {
        name: dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True)) for name, rows in errors.items()
    }  # fmt: skip


def measure_documents(sizes: Sizes) -> dict[str, Any]:
    """Return Table 1, with errors on new documents and with variants of what the paper does not state."""
    runs = [fit_documents(seed, sizes.documents, sizes.topics) for seed in range(sizes.runs)]
    table = {
        sample: {
            name: {
                "mean": float(np.mean([run[sample][name] for run in runs])),
                "sd": float(np.std([run[sample][name] for run in runs], ddof=1)),
            }
            for name in runs[0][sample]
        }
        for sample in runs[0]
    }
    settings = {
        "half the documents": {"documents": sizes.documents // 2},
        "L2 penalty, C = 0.01": {"penalty": 100.0},
        "L2 penalty, C = 0.001": {"penalty": 1000.0},
        "word frequencies ∝ 1/rank^0.5": {"exponent": 0.5},
        "word frequencies ∝ 1/rank^1.5": {"exponent": 1.5},
    }
    variants = {
        name: fit_documents(0, **{"documents": sizes.documents, "label_topics": sizes.variant_topics, **changed})
        for name, changed in settings.items()
    }
    # A topic's share of a document has the distribution Beta(1, 19), so (1 - share)^10 = u^10 with u of Beta(19, 1).
    rate = 1 - (TOPICS - 1) / (TOPICS - 1 + LABELS)
    power = (TOPICS - 1) / LABELS
    trivial = 2 * (1 - rate) ** (power + 1) / (power + 1)
    published = {name: {"mean": mean, "sd": sd} for name, (mean, sd) in PUBLISHED_DOCUMENTS.items()}
    return {
        "published": published, "exact": {"rate": rate, "trivial l1": trivial}, "measured": table, "variants": variants,
        "runs": sizes.runs, "topics": sizes.topics, "documents": sizes.documents,
        "variant topics": sizes.variant_topics,
    }  # fmt: skip


def is_reproduced(model: str, reduction: float) -> bool:
    """Return whether a mean reduction of the loss is within the tolerance of the published one."""
    low, high = PUBLISHED_REDUCTION[model]
    return low - TOLERANCE <= reduction <= high + TOLERANCE


def summarise(measured: dict[str, dict[str, Any]], fewer: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return, per model, the mean reduction of the loss on both data sets beside the published one."""
    models = {}
    for model in MODELS:
        reduction = reduction_of([measured[data][model] for data in DATA_SETS])
        models[model] = {
            "reduction": reduction, "published": PUBLISHED_REDUCTION[model], "published error": PUBLISHED_ERROR[model],
            "reproduced": is_reproduced(model, reduction),
            "reproduced, fewer rows": is_reproduced(model, fewer[model]["reduction"]),
        }  # fmt: skip
    return models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows and fits; figures are not kept")
    arguments = parser.parse_args()
    sizes = SMALL if arguments.quick else FULL
    start = time.perf_counter()
    measured: dict[str, dict[str, Any]] = {data: {} for data in DATA_SETS}
    for data in DATA_SETS:
        for model in MODELS:
            cell = measured[data][model] = measure_model(data, model, sizes)
            print(
                f"{data:10} {model:20} c_emp {cell['c_emp']:.4f} (by chance {cell['by chance']:.4f}), calibrated "
                f"{cell['after']:.4f}, loss ratio {cell['ratio']:.3f} ({cell['ratio, sd over fits']:.3f})",
                flush=True,
            )
    variants = {name: {"of": of} | measure_variant(name, replace(sizes, fits=1)) for name, of in VARIANTS.items()}
    fewer = {model: measure_variant(model, replace(sizes, train=sizes.few)) for model in MODELS}
    models = summarise(measured, fewer)
    cells = [(measured[data][model]["c_emp"], 1 - measured[data][model]["ratio"]) for data in DATA_SETS for model in MODELS]
    correlation = float(spearmanr(*zip(*cells, strict=True)).statistic)
    gap = min(
        min(measured[data][name]["c_emp"] for name in UNLIKE) / max(measured[data][name]["c_emp"] for name in ALIKE)
        for data in DATA_SETS
    )
    documents = measure_documents(sizes)
    for sample, figures in documents["measured"].items():
        print(sample, ", ".join(f"{name} {one['mean']:.4f} ({one['sd']:.4f})" for name, one in figures.items()))
    for name, samples in documents["variants"].items():
        print(name, "; ".join(f"{sample}: l1 {one['l1']:.4f}, c_emp {one['c_emp']:.4f}" for sample, one in samples.items()))
    found = documents["measured"]["training documents"]
    relative = {name: abs(found[name]["mean"] / PUBLISHED_DOCUMENTS[name][0] - 1) for name in ("l1", "c_emp")}
    reproduced = sum(model["reproduced"] for model in models.values())
    bars = (
        (
            "Figure 2: smallest ratio of a c_emp of SVM or boosted trees to one of logistic regression or forest",
            gap,
            2,
            False,
        ),
        ("Figures 2 and 3: rank correlation of c_emp with the reduction of the loss", correlation, 0.8, False),
        ("Figure 3: models, of 5, whose reduction of the loss is as published", reproduced, len(MODELS), False),
        ("Table 1: relative difference of the l1 error from the published one", relative["l1"], 0.05, True),
        ("Table 1: relative difference of c_emp from the published one", relative["c_emp"], 0.05, True),
    )
    checks = {name: check(name, value, bar, at_most=at_most) for name, value, bar, at_most in bars}
    if QUICK or not arguments.quick:
        rows = {
            "training": sizes.train, "few": sizes.few, "held out": sizes.held_out, "calibration": sizes.calibration,
            "test": sizes.held_out - sizes.calibration - sizes.validation,
        }  # fmt: skip
        save("agnostic", {
            "rows": rows, "fits": sizes.fits, "partitions": sizes.partitions, "tolerance": TOLERANCE,
            "seconds": time.perf_counter() - start, "measured": measured, "models": models, "variants": variants,
            "fewer rows": fewer, "correlation": correlation, "documents": documents, "checks": checks,
        })  # fmt: skip


if __name__ == "__main__":
    main()
