"""Audits of rows in clusters: sums over pairs, design effects, p-values, false alarms and power."""

from __future__ import annotations

import csv
import math
import re
import warnings

import numpy as np
import pytest

import trueup as tu
from trueup.data import chunks
from trueup.data.clusters import within_correlation
from trueup.kernels import clusters as pairs
from trueup.metrics.inference import MIN_CLUSTERS, limit_pvalues, segment_pvalues
from trueup.reports.page import csv_lines
from twins import three_se, weighted_floor

ROLES = {"outcome": "y", "prediction": "p"}


def clustered_rows(seed, clusters=150, size=8, icc=0.5, prevalence=0.3, shift=0.0, levels=4, *, varying=False, zipf=False):
    """Draw calibrated rows; two rows of a cluster share a random number with probability ``icc``.

    ``shift`` is added to the log odds of the outcome where the first column is "a".
    """
    random = np.random.default_rng([seed, 7])
    sizes = np.maximum(1, (size * clusters * 0.4 / np.arange(1, clusters + 1) ** 0.6)).astype(int) if zipf else size
    cluster = np.repeat(np.arange(clusters), sizes)
    n = len(cluster)
    logit = (
        math.log(prevalence / (1 - prevalence)) + 0.7 * random.normal(size=clusters)[cluster] + 0.3 * random.normal(size=n)
    )
    draw = lambda: random.integers(0, levels, n) if varying else random.integers(0, levels, clusters)[cluster]  # noqa: E731
    columns = {name: np.array(list("abcdefgh"))[draw()] for name in ("region", "device", "channel")}
    is_shared = random.random(n) < math.sqrt(icc)
    uniform = np.where(is_shared, random.random(clusters)[cluster], random.random(n))
    truth = 1 / (1 + np.exp(-logit - shift * (columns["region"] == "a")))
    y = (uniform < truth).astype(float)
    return {"y": y, "p": 1 / (1 + np.exp(-logit)), "customer": cluster, **columns}


def without_clusters(rows):
    return {name: column for name, column in rows.items() if name != "customer"}


# Sums over pairs, and the formulas that use them


def pair_sums_twin(segment, cluster, u, t, w, count):
    """Compute the sums of `add_pairs` from the sums over the rows of each cluster and segment."""
    out = np.zeros((count, 5))
    for k in range(count):
        for c in np.unique(cluster[segment == k]):
            own = (segment == k) & (cluster == c)
            T, U, W = t[own].sum(), u[own].sum(), w[own].sum()
            out[k] += [
                T**2 - (t[own] ** 2).sum(), U**2 - (u[own] ** 2).sum(), U * W - (u[own] * w[own]).sum(),
                W**2 - (w[own] ** 2).sum(), T**4,
            ]  # fmt: skip
    return out


def pair_sums(segment, cluster, e, p, w, count):
    state = np.zeros((count, pairs.COLUMNS))
    state[:, pairs.LAST] = -1
    t = np.sqrt(p * (1 - p)) * (1 if w is None else w)
    pairs.add_pairs(segment.astype(np.int32), cluster.astype(np.int32), e, t, w, state)
    pairs.close_pairs(state)
    return state[:, :5]


@pytest.mark.parametrize("weighted", [False, True])
def test_pair_sums_agree_with_sums_over_clusters(weighted):
    random = np.random.default_rng(3)
    cluster, segment = np.sort(random.integers(0, 12, 200)), random.integers(-1, 4, 200)
    p, w = random.random(200), random.lognormal(size=200) if weighted else np.ones(200)
    u = w * ((random.random(200) < p) - p)
    expected = pair_sums_twin(segment, cluster, u, w * np.sqrt(p * (1 - p)), w, 4)
    found = pair_sums(segment, cluster, u, p, w if weighted else None, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_pair_sums_of_a_worked_example():
    # Two clusters: residuals (.5, .5, -.5) and (.5), each with t = sqrt(.25) = .5.
    found = pair_sums(np.zeros(4), np.array([0, 0, 0, 1]), np.array([0.5, 0.5, -0.5, 0.5]), np.full(4, 0.5), None, 1)
    # Pairs of t: 1.5^2 - 3/4; of u: .5^2 - 3/4; u w: .5 * 3 - .5; w: 9 - 3; fourth powers: 1.5^4 + .5^4.
    np.testing.assert_allclose(found[0], [1.5, -0.5, 1.0, 6.0, 5.125])


def test_pairs_of_clusters_of_one_row_are_exactly_zero():
    random = np.random.default_rng(0)
    p = random.random(100)
    found = pair_sums(random.integers(0, 3, 100), np.arange(100), (random.random(100) < p) - p, p, random.random(100), 3)
    assert (found[:, :4] == 0).all()


def range_of_path(order, u):
    path = np.append(0.0, np.cumsum(u[order]))
    low = np.minimum.accumulate(path)
    return path.max() - path.min(), (path - low).max()


def section_twelve_twin(rows, mask, weight=None):
    """Return design effect, effective clusters and p-value of a segment by the formulas of docs/statistics.md."""
    y, p, cluster = rows["y"], rows["p"], rows["customer"]
    w = np.ones(len(y)) if weight is None else weight
    u, t = w * (y - p), w * np.sqrt(p * (1 - p))
    quartile = np.searchsorted(np.sort(p)[[len(p) // 4, len(p) // 2, 3 * len(p) // 4]], p, side="right")

    def rho(group):
        square = lambda values: (np.bincount(group, values) ** 2).sum() - (values**2).sum()  # noqa: E731
        return square(u) / square(t)

    correlation = max(0.0, rho(cluster), rho(cluster * 4 + quartile))
    u, t, w, cluster = u[mask], t[mask], w[mask], cluster[mask]
    sums = [np.bincount(cluster, values) for values in (t, u, w)]
    v = (t**2).sum()
    excess = (sums[0] ** 2).sum() - v
    design = 1 + correlation * excess / v
    clusters = (sums[0] ** 2).sum() ** 2 / (sums[0] ** 4).sum()
    mean = u.sum() / w.sum()
    X = ((sums[1] - mean * sums[2]) ** 2).sum() - ((u - mean * w) ** 2).sum()
    own = max(1.0, 1 + X * clusters / (max(clusters - 1, 0.5) * v))
    x, rise = range_of_path(np.argsort(p[mask]), u)
    k3 = (w**3 * (p * (1 - p) * (1 - 2 * p))[mask]).sum()
    one = lambda value: np.array([value])  # noqa: E731
    default = segment_pvalues(one(x), one(rise), one(v * design), one(k3 * design**2))[0]
    floor = weighted_floor(y[mask], p[mask], None if weight is None else w, design)
    return max(design, own), clusters, max(default, limit_pvalues(one(x / math.sqrt(v * own)))[0], floor)


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_findings_agree_with_the_formulas(varying, weighted):
    rows = clustered_rows(4, 300, 5, varying=varying)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(rows["y"])) if weighted else None
    audit = tu.audit(rows, **ROLES, cluster="customer", weight=weight, depth=1)
    for finding in audit:
        name, _, level = finding.segment.partition("=")
        mask = rows[name] == level if level else np.ones(len(rows["y"]), bool)
        design, clusters, p = section_twelve_twin(rows, mask, weight)
        assert clusters > MIN_CLUSTERS
        assert finding.design_effect == pytest.approx(design, rel=1e-9)
        assert finding.p_value == pytest.approx(p, rel=1e-6)
        assert finding.sigma == pytest.approx(
            finding.ecce * finding.weight / math.sqrt(design * variance(rows, mask, weight)), rel=1e-9
        )


def variance(rows, mask, weight):
    w = np.ones(len(mask)) if weight is None else weight
    return float((w**2 * rows["p"] * (1 - rows["p"]))[mask].sum())


# Limits of the recipe


@pytest.mark.parametrize("weighted", [False, True])
def test_clusters_of_one_row_give_the_numbers_of_an_audit_without_clusters(weighted):
    rows = without_clusters(clustered_rows(1, 3000, 1, prevalence=0.05, shift=1.5))
    weight = np.random.default_rng(1).lognormal(size=3000) if weighted else None
    plain = tu.audit(rows, **ROLES, weight=weight)
    one = tu.audit(rows, **ROLES, weight=weight, cluster=np.arange(3000))
    assert plain.miscalibrated
    for name, column in plain.columns.items():
        np.testing.assert_array_equal(one.columns[name], column)
    assert (one.columns["design_effect"] == 1).all()


def test_clusters_of_one_row_change_nothing_with_several_classes():
    random = np.random.default_rng(5)
    p = random.dirichlet(np.ones(3), 1500)
    rows = {
        "y": [random.choice(3, p=row) for row in p],
        **{f"p{k}": p[:, k] for k in range(3)},
        "g": random.choice(list("ab"), 1500),
    }
    roles = {"outcome": "y", "prediction": ["p0", "p1", "p2"]}
    plain, one = tu.audit(rows, **roles), tu.audit(rows, **roles, cluster=np.arange(1500))
    for name, column in plain.columns.items():
        np.testing.assert_array_equal(one.columns[name], column)


def test_copies_of_rows_count_once():
    # With p = 1/2 every residual is +-1/2: copies have correlation 1, and m copies a design effect of m.
    random = np.random.default_rng(2)
    y, group = (random.random(400) < 0.58).astype(float), random.choice(list("ab"), 400)
    rows = {"y": y, "p": np.full(400, 0.5), "g": group}
    plain = tu.audit(rows, **ROLES)
    copies = tu.audit(
        {name: np.repeat(column, 6) for name, column in rows.items()}, **ROLES, cluster=np.repeat(np.arange(400), 6)
    )
    for segment in ("all rows", "g=a", "g=b"):
        assert copies[segment].design_effect == pytest.approx(6, rel=0.02)
        assert copies[segment].p_value == pytest.approx(plain[segment].p_value, rel=0.1)
        assert copies[segment].ratio_low == pytest.approx(plain[segment].ratio_low, rel=0.01)
        assert copies[segment].mde == pytest.approx(plain[segment].mde, rel=0.01)
        np.testing.assert_allclose(copies[segment].curve.low, plain[segment].curve.low, rtol=0.02)


@pytest.mark.filterwarnings("ignore::trueup.errors.OneClassWarning")
def test_the_correlation_is_taken_for_1_if_few_clusters_of_the_rarer_outcome_are_expected():
    # 100 clusters of 10 rows, if all rows of a cluster have the same outcome: 2 or 5 clusters with events are expected.
    design = {}
    for p in (0.02, 0.05, 0.95, 0.98):
        rows = {"y": np.full(1000, float(p > 0.5)), "p": np.full(1000, p), "customer": np.repeat(np.arange(100), 10)}
        design[p] = tu.audit(rows, **ROLES, cluster="customer").overall.design_effect
    # The residuals are all p or 1 - p: their correlation is p^2 / (p (1 - p)) for the rarer outcome.
    common = 1 + 9 * 0.05 / 0.95
    assert design == {
        0.02: pytest.approx(10),
        0.05: pytest.approx(common),
        0.95: pytest.approx(common),
        0.98: pytest.approx(10),
    }


def test_neither_the_order_of_rows_nor_the_spelling_of_identifiers_matters():
    rows = clustered_rows(3)
    order = np.random.default_rng(0).permutation(len(rows["y"]))
    moved = {name: column[order] for name, column in rows.items()}
    moved["customer"] = np.array([f"customer {number}" for number in moved["customer"]])
    first, second = (tu.audit(data, **ROLES, cluster="customer") for data in (rows, moved))
    for name in ("p_adjusted", "sigma", "design_effect", "mde"):
        np.testing.assert_allclose(first.columns[name], second.columns[name], rtol=1e-9)


def test_segments_with_few_clusters_are_not_tested_but_counted():
    rows = clustered_rows(6, 150, 8)
    rows["region"] = np.where(rows["customer"] < 8, "small", np.where(rows["customer"] < 80, "north", "south"))
    columns = {name: rows[name] for name in ("y", "p", "customer", "region")}
    audit = tu.audit(columns, **ROLES, cluster="customer")
    small = audit["region=small"]
    assert not small.testable
    assert math.isnan(small.p_value)
    assert small.note == f"not tested: fewer than {MIN_CLUSTERS} effective clusters"
    assert audit.tested == 3
    assert audit.worst(1)[0].p_adjusted == pytest.approx(min(1.0, 6 * audit.worst(1)[0].p_value))
    assert "not tested: 1 segment has too few clusters (counted among the tests)" in repr(audit)
    everything = tu.audit({**columns, "customer": rows["customer"] % 5}, **ROLES, cluster="customer")
    assert everything.verdict == "nothing could be tested: no segment has 50 rows in 10 effective clusters"


def test_an_audit_of_very_uneven_clusters_says_why_and_what_to_do():
    rows = clustered_rows(6, 250, 8)
    rows["customer"] = np.maximum(rows["customer"] - 150, 0)  # one has 1,208 rows, the others 8
    columns = {name: rows[name] for name in ("y", "p", "customer", "region")}
    audit = tu.audit(columns, **ROLES, cluster="customer")
    assert audit.clusters == 100
    rows_of = np.bincount(rows["customer"])
    assert audit.effective_clusters == pytest.approx(2000**2 / (rows_of**2).sum())  # 2.7
    assert audit.verdict.endswith("10 effective clusters; a few large clusters have most of the rows")
    assert "the 100 clusters count for 2.7 of equal size" in repr(audit)
    assert "weight each row by 1 / the number of rows of its cluster" in repr(audit)
    columns["w"] = 1 / np.bincount(rows["customer"])[rows["customer"]]
    followed = tu.audit(columns, **ROLES, weight="w", cluster="customer")
    assert followed.tested == 5
    assert followed.effective_clusters == pytest.approx(100)
    assert "a few large clusters" not in repr(followed)


def test_clusters_of_few_rows_are_not_called_large_where_scores_differ():
    random = np.random.default_rng(0)
    customer = np.repeat(np.arange(4000), random.integers(1, 6, 4000))
    p = np.minimum(0.02 * random.lognormal(0, 1.2, 4000), 0.9)[customer]  # few customers have most of the variance
    rows = {"y": (random.random(4000)[customer] < p).astype(float), "p": p, "customer": customer}
    rows["level"] = np.where(customer < 30, "small", "large")
    audit = tu.audit(rows, **ROLES, cluster="customer")
    assert not audit["level=small"].testable
    assert "too few clusters" in repr(audit)
    assert "a few large clusters" not in repr(audit)


def test_the_design_effect_is_a_column_of_audits_with_clusters_only():
    rows = clustered_rows(3)
    audit = tu.audit(rows, **ROLES, cluster="customer")
    assert audit.to_frame()["design_effect"].shape == (len(audit),)
    assert audit.overall.to_dict()["design_effect"] == audit.overall.design_effect > 2
    assert audit.to_dict(1)["roles"]["cluster"] == "customer"
    assert not any(name.startswith("customer") for name in audit.to_frame()["segment"])
    assert next(csv_lines(audit)).endswith(",design_effect,problem\r\n")
    assert "rows are in 150 clusters (by customer): design effect" in repr(audit)
    plain = tu.audit(without_clusters(rows), **ROLES)
    assert plain.overall.design_effect is None
    for found in (plain.to_frame(), plain.overall.to_dict(), plain.to_dict(1)["roles"]):
        assert not {"design_effect", "cluster"} & set(found)
    lines = list(csv_lines({"clusters": audit, "plain": plain}))
    assert lines[-1].endswith(",,\r\n")
    assert plain.global_sigma * math.sqrt(audit.overall.design_effect) == pytest.approx(audit.global_sigma)
    assert audit.summary.scores["slope_se"] > plain.summary.scores["slope_se"]


# Errors


def test_missing_identifiers_are_rejected():
    rows = clustered_rows(1)
    rows["customer"] = np.where(rows["customer"] == 3, np.nan, rows["customer"])
    with pytest.raises(tu.errors.DataError, match=r"cluster column 'customer' is missing at row 24 \(8 such rows\)"):
        tu.audit(rows, **ROLES, cluster="customer")


def test_the_cluster_is_neither_a_segment_column_nor_another_role():
    rows = clustered_rows(1)
    with pytest.raises(tu.errors.ColumnError, match="'customer' is named both as cluster and as feature"):
        tu.audit(rows, **ROLES, cluster="customer", by=["region", "customer"])
    with pytest.raises(tu.errors.ColumnError, match="'p' is named both as prediction and as cluster"):
        tu.audit(rows, **ROLES, cluster="p")


def test_draws_of_independent_rows_are_refused():
    with pytest.raises(
        tu.errors.ArgumentError, match="adjust='max' draws rows independently, and cannot be used with clusters"
    ):
        tu.audit(clustered_rows(1), **ROLES, cluster="customer", adjust="max")


def test_large_integers_are_distinct_identifiers():
    rows = clustered_rows(1)
    plain = tu.audit(rows, **ROLES, cluster="customer")
    large = tu.audit({**rows, "customer": 2**60 + rows["customer"]}, **ROLES, cluster="customer")
    np.testing.assert_allclose(large.columns["design_effect"], plain.columns["design_effect"], rtol=1e-9)


# Statistics: shares of repetitions, with tolerances of three standard errors


@pytest.mark.parametrize(
    "options",
    [
        {"clusters": 300, "size": 4, "icc": 0.1},
        {"clusters": 150, "size": 12, "icc": 1.0},
        {"clusters": 60, "size": 40, "icc": 0.1},
        {"clusters": 150, "size": 12, "icc": 0.6, "varying": True},
        {"clusters": 200, "size": 10, "icc": 0.3, "prevalence": 0.02},
        {"clusters": 200, "size": 8, "icc": 0.3, "zipf": True},
    ],
)  # fmt: skip
@pytest.mark.repeated(20, 60)
def test_audits_of_calibrated_clusters_are_false_alarms_in_5_percent_at_most(options, repetitions):
    audits = [
        tu.audit(clustered_rows(seed, **options), **ROLES, cluster="customer", threads=1) for seed in range(repetitions)
    ]
    assert np.mean([audit.miscalibrated for audit in audits]) <= 0.05 + three_se(0.05, repetitions)
    assert min(audit.tested for audit in audits) >= 1


def test_without_clusters_calibrated_rows_look_miscalibrated():
    rows = [without_clusters(clustered_rows(seed, 150, 12, 1.0)) for seed in range(20)]
    assert np.mean([tu.audit(data, **ROLES, threads=1).miscalibrated for data in rows]) == 1


@pytest.mark.repeated(20, 60)
def test_weighted_clusters_are_false_alarms_in_5_percent_at_most(repetitions):
    alarms = []
    for seed in range(repetitions):
        rows = clustered_rows(seed, 300, 6, 0.5)
        weight = np.random.default_rng(seed).lognormal(size=len(rows["y"]))
        alarms.append(tu.audit(rows, **ROLES, cluster="customer", weight=weight, threads=1).miscalibrated)
    assert np.mean(alarms) <= 0.05 + three_se(0.05, repetitions)


def test_intervals_of_the_ratio_cover_the_truth():
    audits = [
        tu.audit(clustered_rows(seed, 150, 10, 0.5), **ROLES, cluster="customer", depth=1, threads=1) for seed in range(80)
    ]
    covered = [[finding.ratio_low <= 1 <= finding.ratio_high for finding in audit] for audit in audits]
    assert np.mean([audit.overall.ratio_low <= 1 <= audit.overall.ratio_high for audit in audits]) >= 0.95 - 3 * math.sqrt(
        0.05 * 0.95 / 80
    )
    assert np.mean(covered) >= 0.92


def test_errors_in_clusters_are_found():
    # The pooled design effect is 1 + 7 icc = 2.4 to 2.8: 300 clusters of 8 rows count as about 900 rows, 225 of them in
    # the segment, where a shift of 1 in log odds is 7 standard deviations.
    found = [
        tu.audit(clustered_rows(seed, 300, 8, 0.2, shift=1.0), **ROLES, cluster="customer", threads=1)[
            "region=a"
        ].p_adjusted
        for seed in range(20)
    ]
    assert np.mean(np.array(found) <= 0.05) >= 0.9


# Real outcomes


def clustered_amounts(seed, clusters=250, size=8, kind="gamma", spread=0.6, shift=1.0):
    """Draw amounts whose mean is the prediction, with a factor shared by the rows of a cluster.

    Outcomes are ``shift`` times as large where region is "a".
    """
    random = np.random.default_rng([seed, 8])
    cluster = np.repeat(np.arange(clusters), size)
    p = np.exp(0.5 * random.normal(size=clusters)[cluster] + 0.2 * random.normal(size=len(cluster)))
    columns = {name: np.array(list("abcd"))[random.integers(0, 4, clusters)[cluster]] for name in ("region", "device")}
    mean = p * np.where(columns["region"] == "a", shift, 1.0)
    mean = mean * np.exp(spread * random.normal(size=clusters) - spread**2 / 2)[cluster]
    y = random.poisson(mean).astype(float) if kind == "poisson" else mean * random.gamma(2.0, 0.5, len(p))
    return {"y": y, "p": p, "customer": cluster, **columns}


@pytest.mark.parametrize("options", [{"task": "regression"}, {"family": "gamma"}])
def test_clusters_of_one_row_change_no_audit_of_real_outcomes(options):
    rows = without_clusters(clustered_amounts(1, 3000, 1, shift=1.3))
    plain, one = (tu.audit(rows, **ROLES, **options, cluster=cluster) for cluster in (None, np.arange(3000)))
    assert plain.miscalibrated
    for name, column in plain.columns.items():
        np.testing.assert_array_equal(one.columns[name], column)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("gamma", {"task": "regression"}), ("poisson", {"task": "regression"}), ("poisson", {"family": "poisson"})],
)
@pytest.mark.repeated(15, 40)
def test_audits_of_calibrated_amounts_in_clusters_are_false_alarms_in_5_percent_at_most(kind, options, repetitions):
    alarms = {"customer": [], None: []}
    for seed in range(repetitions):
        rows = clustered_amounts(seed, kind=kind)
        for cluster, found in alarms.items():
            data = rows if cluster else without_clusters(rows)
            found.append(tu.audit(data, **ROLES, **options, cluster=cluster, threads=1).miscalibrated)
    assert np.mean(alarms["customer"]) <= 0.05 + three_se(0.05, repetitions)
    assert np.mean(alarms[None]) >= 0.4


def test_errors_of_amounts_in_clusters_are_found():
    found = [
        tu.audit(clustered_amounts(seed, spread=0.3, shift=1.4), **ROLES, task="regression", cluster="customer", threads=1)
        for seed in range(12)
    ]
    assert np.mean([audit["region=a"].p_adjusted <= 0.05 for audit in found]) >= 0.8


def test_a_single_cluster_and_a_single_dropped_combination_are_singular():
    rows = clustered_rows(1, 1, 200)
    audit = tu.audit(rows, **ROLES, cluster="customer", threads=1)
    assert "rows are in 1 cluster (by customer)" in repr(audit)
    assert audit.tested == 0
    rows = without_clusters(clustered_rows(1, 400))
    audit = tu.audit(rows, **ROLES, by=["region", "device"], max_cells=10, threads=1)
    assert "; 1 combination of columns was not tested" in audit.verdict


# The warning of repeated identifiers


def cluster_warnings(rows, **options):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        tu.audit(rows, **ROLES, threads=1, **options)
    return [str(warning.message) for warning in found if issubclass(warning.category, tu.errors.ClusterWarning)]


@pytest.mark.parametrize("spelling", [int, str])
@pytest.mark.parametrize("options", [{}, {"by": ["region"]}])
def test_repeated_identifiers_are_named_in_a_warning(spelling, options):
    rows = clustered_rows(2, 300, 6, 0.5)
    rows["customer_id"] = rows.pop("customer").astype(spelling)
    (message,) = cluster_warnings(rows, **options)
    assert "rows with the same 'customer_id' are not independent" in message
    assert 'cluster="customer_id"' in message
    assert not cluster_warnings(rows, cluster="customer_id")


@pytest.mark.parametrize("shape", [(80, 200), (150, 120), (12, 100)])
def test_columns_named_like_identifiers_may_have_few_values_with_many_rows(shape):
    rows = clustered_rows(2, *shape, 1.0)
    (message,) = cluster_warnings(rows)
    assert 'cluster="customer"' in message
    assert not cluster_warnings({"foo" if name == "customer" else name: column for name, column in rows.items()})
    assert not cluster_warnings(clustered_rows(3, *shape, 0.0))
    assert not cluster_warnings(clustered_rows(2, 9, 200, 1.0))  # an audit with nine clusters would test nothing


def test_the_correlation_in_the_warning_is_at_most_one():
    # Adjacent customers have opposite outcomes: the estimate, correlation within minus that between neighbours, is near 2.
    rows = clustered_rows(2, 300, 6, 0.0)
    rows["y"] = (rows["customer"] % 2).astype(float)
    (message,) = cluster_warnings(rows, by=["region"])
    assert "(correlation of residuals 1)" in message
    assert "1/6 as many rows" in message


def skewed_outcomes(seed, noise, clusters=300, size=6, shared=0.0):
    """Draw rows with a real outcome; ``shared`` is the share of the noise that rows of one customer have in common."""
    random = np.random.default_rng([seed, 23])
    customer = np.repeat(np.arange(clusters), size)
    p = random.gamma(2.0, 1.0, clusters)[customer]
    own, common = (p * draw(random, noise, n) for n, draw in ((len(p), draw_noise), (clusters, draw_shared(customer))))
    return {"y": np.where(random.random(len(p)) < shared, common, own), "p": p, "customer": customer}


def draw_noise(random, noise, n):
    if noise == "zero-inflated":
        return (random.random(n) < 0.05) * random.gamma(1.0, 20.0, n)
    return random.lognormal(-0.5, 1.0, n) if noise == "lognormal" else random.poisson(1.0, n)


def draw_shared(customer):
    return lambda random, noise, n: draw_noise(random, noise, n)[customer]


@pytest.mark.parametrize("noise", ["lognormal", "poisson", "zero-inflated"])
def test_repeated_identifiers_of_real_outcomes_are_named_in_a_warning(noise):
    independent = [cluster_warnings(skewed_outcomes(seed, noise), task="regression") for seed in range(20)]
    assert sum(map(bool, independent)) <= 1
    found = [cluster_warnings(skewed_outcomes(seed, noise, shared=0.9), task="regression") for seed in range(5)]
    assert all("rows with the same 'customer' are not independent" in one[0] for one in found)


def test_outcomes_that_are_all_equal_are_not_correlated():
    # Rare events: in most score bins every outcome is 0, and residuals are minus the score, which a customer's rows share.
    random = np.random.default_rng(0)
    customer = np.repeat(np.arange(300), 6)
    p = 0.004 * random.random(300)[customer]
    found = [
        cluster_warnings({"y": (random.random(1800) < p).astype(float), "p": p, "customer": customer}) for _ in range(10)
    ]
    assert not any(found)


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(rows), *zip(*rows.values(), strict=True)])
    return str(path)


@pytest.mark.parametrize(
    ("spelling", "real", "by"), [(int, False, None), (int, True, ["region"]), (str, False, ["region"]), (str, True, None)]
)
def test_repeated_identifiers_in_scanned_files_are_named_in_a_warning(tmp_path, spelling, real, by, monkeypatch):
    rows = clustered_rows(2, 400, 6, 0.5)
    rows["customer"] = np.char.add("c", rows["customer"].astype(str)) if spelling is str else rows["customer"]
    if real:
        rows["y"] = rows["y"] * 2 - rows["p"]
    scan = tu.scan(write_csv(tmp_path / "rows.csv", rows))
    more = {"by": by, "task": "regression" if real else "auto"}
    for sample, values in ((200_000, 1000), (1200, 100), (1200, 1000)):  # all rows, whole clusters, some rows of each
        monkeypatch.setattr(chunks, "MAX_SAMPLE_ROWS", sample)
        monkeypatch.setattr(chunks, "MIN_SAMPLE_VALUES", values)
        (message,) = cluster_warnings(scan, **more)
        assert 'cluster="customer"' in message
        design = float(re.search(r"1/([0-9.]+) as many", message)[1])
        assert 2 < design < 5  # 1 + 5 rho, with rho = .5
    assert not cluster_warnings(scan, cluster="customer", **more)
    independent = tu.scan(write_csv(tmp_path / "independent.csv", clustered_rows(2, 400, 6, 0.0)))
    assert not cluster_warnings(independent, by=by)


def test_a_fit_on_scanned_files_warns_of_repeated_identifiers(tmp_path):
    scan = tu.scan(write_csv(tmp_path / "rows.csv", clustered_rows(2, 300, 6, 0.5)))
    with pytest.warns(tu.errors.ClusterWarning, match="'customer'"):
        tu.MCGrad("p", features=["region"]).fit(scan, "y")


def test_a_fit_warns_of_repeated_identifiers():
    rows = clustered_rows(2, 300, 6, 0.5)
    with pytest.warns(tu.errors.ClusterWarning, match="'customer'"):
        tu.Platt("p").fit(rows, "y")


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_ordinary_features_are_not_taken_for_identifiers(shift):
    # Calibrated scores, and scores with errors that depend on a number and on the overall rate.
    for seed in range(5):
        random = np.random.default_rng(seed)
        n = 6000
        columns = {
            "age": random.integers(18, 95, n), "postcode": random.integers(1000, 2000, n), "amount": random.random(n),
            "income": np.round(random.lognormal(10, 0.6, n), -2), "visits": random.poisson(200, n),
            "town_id": np.array([f"town {number}" for number in random.integers(0, 900, n)]),
        }  # fmt: skip
        p = random.uniform(0.05, 0.5, n)
        logit = np.log(p / (1 - p)) + shift * (0.3 + 0.5 * np.log(columns["income"] / 22_000) + columns["age"] / 90)
        y = (random.random(n) < 1 / (1 + np.exp(-logit))).astype(float)
        assert not cluster_warnings({"y": y, "p": p, **columns})


def test_the_warning_names_the_column_that_explains_the_others():
    # Customers have a balance, which some share: rows with the same balance are correlated only within customers.
    random = np.random.default_rng(0)
    for seed in range(6):
        rows = clustered_rows(seed, 400, 6, 1.0)
        (message,) = cluster_warnings({**rows, "balance": random.integers(0, 200, 400)[rows["customer"]]})
        assert 'cluster="customer"' in message
    # Rows of balance 0 have an error, and are a segment.
    rows = clustered_rows(2, 2000, 6, 1.0)
    balance, hospital = random.integers(1, 500, 2000), random.integers(0, 100, 2000)
    balance[:400] = 0
    rows["y"] = np.where(balance[rows["customer"]] == 0, random.random(12_000) < rows["p"] ** 0.3, rows["y"])
    (message,) = cluster_warnings({**rows, "balance": balance[rows["customer"]]})
    assert 'cluster="customer"' in message
    # Customers of one hospital have a common error, so rows of different customers are correlated, too.
    shift = np.where(random.random(100) < 0.5, 0.0, 0.6)[hospital][rows["customer"]]
    alike = {**rows, "hospital_id": hospital[rows["customer"]], "y": np.where(shift > 0, 1.0, rows["y"])}
    (message,) = cluster_warnings(alike)
    assert 'cluster="hospital_id"' in message


def test_independent_rows_with_repeated_identifiers_do_not_warn():
    assert not any(cluster_warnings(clustered_rows(seed, 300, 6, 0.0)) for seed in range(10))


def test_errors_shared_by_adjacent_values_are_not_those_of_clusters():
    random = np.random.default_rng(0)
    value = np.repeat(np.arange(200), 10)
    smooth = np.sin(value / 20) + 0.3 * random.normal(size=2000)
    within, sigmas = within_correlation(smooth / smooth.std(), value, 200)
    assert abs(sigmas) < 5
    own = random.normal(size=200)[value]
    within, sigmas = within_correlation(own, value, 200)
    assert within > 0.8
    assert sigmas > 50
