"""Fits with clusters: folds keep them whole, and the standard errors of gains are those of independent clusters."""

from __future__ import annotations

import itertools
import math

import duckdb
import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

import trueup as tu
from partitioned import run_threads
from trueup.calibrators import stopping
from trueup.calibrators.crossfit import divide_rows, read_clusters
from trueup.data import chunks
from trueup.data.folds import assign_clusters, assign_clusters_by_hash, hash_numbers, hash_texts, text_hash_sql
from trueup.data.frame import read
from trueup.errors import ClusterWarning

SMALL = {"rounds": 2, "trees": 5}
CALIBRATORS = {
    "mcgrad": lambda **o: tu.MCGrad("p", ["region"], **SMALL, **o),
    "mcgrad, holdout": lambda **o: tu.MCGrad("p", ["region"], stopping=tu.Holdout(0.3), **SMALL, **o),
    "lsboost": lambda **o: tu.LSBoost("p", ["region"], rounds=2, **o),
    "depthtwo": lambda **o: tu.DepthTwo("p", ["region"], trees=5, **o),
    "hkrr": lambda **o: tu.HKRR("p", ["region"], **o),
    "lore": lambda **o: tu.LoRe("p", ["region"], **o),
    "isotonic": lambda **o: tu.Isotonic("p", stopping=tu.CrossValidation(3), **o),
    "grouped": lambda **o: tu.Grouped(tu.Platt(), by=["region"], prediction="p", stopping=tu.CrossValidation(3), **o),
    "auto": lambda **o: tu.Auto("p", ["region"], methods=["identity", "platt"], **o),
}


def clustered_rows(seed, clusters=120, size=6, shift=0.8):
    random = np.random.default_rng([seed, 3])
    customer = np.repeat(np.arange(clusters), size)
    logit = random.normal(size=clusters)[customer]
    region = np.array(["north", "south"])[random.integers(0, 2, clusters)[customer]]
    y = random.random(clusters) < 1 / (1 + np.exp(-logit[::size] - shift * (region[::size] == "north")))
    return {"p": 1 / (1 + np.exp(-logit)), "region": region, "customer": customer, "y": y[customer].astype(float)}


# Folds


@pytest.mark.parametrize("folds", [2, 5, 1000])
def test_every_cluster_is_in_one_fold(folds):
    random = np.random.default_rng(0)
    cluster = hash_numbers([np.repeat(np.arange(300), random.integers(1, 30, 300))])
    fold = assign_clusters(cluster, random.random(len(cluster)).round(), folds, 0)
    assert all(len(np.unique(fold[cluster == key])) == 1 for key in np.unique(cluster))
    if folds <= 5:
        assert np.bincount(fold, minlength=folds).min() >= 0.8 * len(cluster) / folds


def test_folds_of_clusters_depend_on_the_identifiers_and_the_seed_only():
    random = np.random.default_rng(1)
    names = np.array([f"customer {number}" for number in random.integers(0, 100, 900)])
    keys = hash_texts(names)
    fold = assign_clusters(keys, np.zeros(900), 5, 0)
    order = random.permutation(900)
    np.testing.assert_array_equal(assign_clusters(keys[order], np.zeros(900), 5, 0), fold[order])
    assert (assign_clusters(keys, np.zeros(900), 5, 1) != fold).any()


@pytest.mark.parametrize("name", CALIBRATORS)
def test_held_out_rows_are_whole_clusters(name, monkeypatch):
    rows, splits = clustered_rows(0), []
    split_rows = stopping.split_rows
    monkeypatch.setattr(stopping, "split_rows", lambda *a, **o: splits.append((a[0], split_rows(*a, **o))) or splits[-1][1])
    fitted = CALIBRATORS[name]().fit(rows, "y", cluster="customer")
    assert splits
    for table, own in splits:
        for split in own:
            assert not np.isin(table.cluster[split.train], table.cluster[split.valid]).any()
    assert fitted.model_.schema.cluster is None
    assert "customer" not in [feature.name for feature in fitted.model_.schema.features]


def test_shrinkage_of_groups_is_chosen_on_whole_clusters(monkeypatch):
    from trueup.calibrators.curves import grouped

    found = []
    assign = grouped.assign_folds
    monkeypatch.setattr(grouped, "assign_folds", lambda table, *a: found.append((table, assign(table, *a))) or found[-1][1])
    tu.Grouped(tu.Platt(), by=["region"], prediction="p").fit(clustered_rows(0), "y", cluster="customer")
    for table, fold in found:
        assert len(np.unique(np.column_stack([table.cluster, fold.astype(np.uint64)]), axis=0)) == len(
            np.unique(table.cluster)
        )
    assert found


def test_clusters_of_one_row_leave_the_standard_error_as_it_is():
    random = np.random.default_rng(2)
    gains, weight = random.normal(0.1, 1.0, 200), random.lognormal(size=200)
    plain = stopping.paired_gain(gains, weight)
    assert stopping.paired_gain(gains, weight, cluster=random.permutation(200)) == pytest.approx(plain)


def test_the_standard_error_of_copies_is_that_of_one():
    gains = np.random.default_rng(2).normal(0.1, 1.0, 200)
    plain = stopping.paired_gain(gains, None)
    copies = stopping.paired_gain(np.repeat(gains, 7), None, cluster=np.repeat(np.arange(200), 7))
    assert copies == pytest.approx(plain)


def test_the_standard_error_agrees_with_sums_over_clusters():
    random = np.random.default_rng(4)
    cluster, w, d = random.integers(0, 40, 300), random.lognormal(size=300), random.normal(size=300)
    mean = (w * d).sum() / w.sum()
    sums = np.array([(w * (d - mean))[cluster == number].sum() for number in range(40)])
    size = np.bincount(cluster, w)
    rows = min(size.sum() ** 2 / (size**2).sum(), (sums**2).sum() ** 2 / (sums**4).sum())
    expected = mean, math.sqrt((sums**2).sum() * rows / (rows - 1)) / w.sum(), rows
    assert stopping.paired_gain(d, w, cluster=cluster) == pytest.approx(expected)


def test_a_calibrated_score_of_clusters_is_left_unchanged():
    # Twenty copies of each row: without clusters, copies are evaluated by a model that was fitted on them.
    changed = {None: 0, "customer": 0}
    for seed, cluster in itertools.product(range(12), changed):
        rows = clustered_rows(seed, 60, 20, shift=0.0)
        rows = {name: column for name, column in rows.items() if cluster or name != "customer"}
        fitted = tu.Isotonic("p", stopping=tu.CrossValidation(5)).fit(rows, "y", cluster=cluster)
        changed[cluster] += fitted.history_.chosen
    assert changed[None] >= 8
    assert changed["customer"] <= 2


def test_an_error_of_clusters_is_corrected():
    rows = clustered_rows(1, 600, 5, shift=1.5)
    fitted = tu.Auto("p", ["region"], methods=["identity", "mcgrad"]).fit(rows, "y", cluster="customer")
    assert fitted.choice_.method == "mcgrad"


def test_validation_rows_may_have_clusters():
    rows, more = clustered_rows(1), clustered_rows(2)
    validation = tu.Validation(more, more["y"], cluster="customer")
    fitted = tu.Isotonic("p", stopping=validation).fit(rows, "y", cluster="customer")
    plain = tu.Isotonic("p", stopping=tu.Validation(more, more["y"])).fit(rows, "y", cluster="customer")
    assert fitted.history_.loss_before == pytest.approx(plain.history_.loss_before)
    assert fitted.history_.rounds[1].error > 1.5 * plain.history_.rounds[1].error


def test_another_cluster_invalidates_finished_rounds(tmp_path):
    rows = clustered_rows(1)
    path = tmp_path / "fit.rounds"
    tu.MCGrad("p", ["region"], resume=str(path), **SMALL).fit(rows, "y", cluster="customer")
    assert not path.exists() or path.stat().st_size  # removed, or kept for another fit
    table = read(rows, outcome="y", prediction="p", features=["region"], cluster="customer")
    from trueup.calibrators.mcgrad.cascade import fingerprint_table

    other = read(rows, outcome="y", prediction="p", features=["region"], cluster=rows["customer"] // 2)
    assert fingerprint_table(table)["cluster"] != fingerprint_table(other)["cluster"]


def test_too_few_clusters_for_the_folds_are_an_error():
    rows = clustered_rows(1)
    rows["customer"] = rows["customer"] % 3
    with pytest.raises(tu.errors.DataError, match="cannot be split") as raised:
        tu.MCGrad("p", ["region"], **SMALL).fit(rows, "y", cluster="customer")
    assert "the rows of a cluster are in one fold" in str(raised.value)


# Estimators


def test_cross_fitting_keeps_clusters_together():
    rows = clustered_rows(3)
    X = np.column_stack([rows["p"], rows["region"] == "north"]).astype(float)
    clusters = read_clusters(rows["customer"].astype(str), len(X))
    folds = divide_rows(5, X, rows["y"], rows["y"], np.arange(len(X)), {}, clusters)
    assert sum(len(test) for _, test in folds) == len(X)
    assert not any(np.isin(clusters[test], clusters[train]).any() for train, test in folds)


def test_calibrated_classifiers_accept_clusters():
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    rows = clustered_rows(3)
    X = np.column_stack([rows["p"], rows["region"] == "north"]).astype(float)
    for cv in (5, GroupKFold(4)):
        fitted = tu.CalibratedClassifier(LogisticRegression(), tu.Platt(), cv=cv).fit(
            X, rows["y"], cluster=rows["customer"]
        )
        assert fitted.predict_proba(X).shape == (len(X), 2)
    own = [(np.arange(400), np.arange(400, 720))]
    with pytest.raises(tu.errors.ArgumentError, match="cv divides clusters"):
        tu.CalibratedClassifier(LogisticRegression(), tu.Platt(), cv=own).fit(X, rows["y"], cluster=rows["customer"])
    with pytest.raises(tu.errors.DataError, match="cluster has 3 values for 720 rows"):
        tu.CalibratedClassifier(LogisticRegression(), tu.Platt()).fit(X, rows["y"], cluster=[1, 2, 3])


# Rows in files and on a cluster


def test_texts_have_the_same_hash_in_files():
    texts = ["", "a", "customer 12", "é", "x" * 100]
    listed = ", ".join(f"('{text}')" for text in texts)
    numbers = [row[0] for row in duckdb.sql(f"SELECT {text_hash_sql('t')} FROM (VALUES {listed}) AS rows(t)").fetchall()]
    np.testing.assert_array_equal(hash_numbers([np.array(numbers)]), hash_texts(texts))


@pytest.mark.parametrize("spelling", [int, str])
def test_files_give_the_model_of_rows_in_memory(spelling, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "PARTITION_ROWS", 200)
    monkeypatch.setattr(chunks, "MAX_CHUNK_ROWS", 400)
    # In memory, folds and buckets as in partitions, which know only their own clusters.
    monkeypatch.setattr(stopping, "assign_folds", lambda t, count, seed: assign_clusters_by_hash(t.cluster, count, seed))
    monkeypatch.setattr(stopping, "cluster_numbers", stopping.cluster_buckets)
    frame = pd.DataFrame(clustered_rows(1, 300, 5, shift=1.5))
    frame["customer"] = frame["customer"].astype(spelling)
    frame = frame.sample(frac=1, random_state=0)
    duckdb.from_df(frame).write_parquet(str(tmp_path / "rows.parquet"))
    made = [tu.MCGrad("p", ["region"], rounds=1, trees=10, repeats=1) for _ in range(2)]
    found = made[0].fit(tu.scan(str(tmp_path / "rows.parquet")), "y", cluster="customer")
    expected = made[1].fit(frame, "y", cluster="customer")
    assert found.history_.chosen == 2
    assert found.history_.rounds[1].error == pytest.approx(expected.history_.rounds[1].error)
    np.testing.assert_allclose(found.predict(frame), expected.predict(frame))
    assert found.model_.schema.cluster is None


def test_workers_add_up_the_gains_of_their_clusters():
    random = np.random.default_rng(0)
    cluster, w, d = random.integers(0, 300, 3000), random.lognormal(size=3000), random.normal(0.1, 1.0, 3000)
    own = [np.flatnonzero(random.integers(0, 3, 3000) == rank) for rank in range(3)]
    own[0] = np.setdiff1d(np.arange(3000), np.concatenate(own[1:]))
    gain = lambda communicator: stopping.paired_gain(  # noqa: E731
        d[own[communicator.rank]], w[own[communicator.rank]], communicator, cluster[own[communicator.rank]]
    )
    expected = stopping.paired_gain(d[np.concatenate(own)], w[np.concatenate(own)], cluster=cluster[np.concatenate(own)])
    for found in run_threads(3, gain):
        assert found == pytest.approx(expected)


def test_sums_over_buckets_of_clusters_estimate_the_same_variance():
    random = np.random.default_rng(1)
    cluster = np.repeat(np.arange(20_000), 3)
    gains = random.normal(size=20_000)[cluster] + random.normal(size=60_000)
    keys = hash_numbers([cluster.astype(float)])
    buckets = (keys % np.uint64(stopping.CLUSTER_BUCKETS)).astype(np.int64)
    exact, bucketed = (stopping.paired_gain(gains, None, cluster=numbers) for numbers in (cluster, buckets))
    assert bucketed[0] == pytest.approx(exact[0])
    # The relative standard deviation of a standard error from 4,096 squares is 1 / sqrt(2 * 4096).
    assert bucketed[1] == pytest.approx(exact[1], rel=4 / math.sqrt(2 * stopping.CLUSTER_BUCKETS))


def rows_of_patients(correlation, patients=400, size=5):
    """Return calibrated rows with correlated outcomes, and the patient of each; rows of one have the same features."""
    random = np.random.default_rng(1)
    of_row = np.repeat(np.arange(patients), size)
    p = random.uniform(0.1, 0.9, patients)[of_row]
    own, shared = random.normal(size=len(of_row)), random.normal(size=patients)[of_row]
    latent = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    features = {f"x{at}": random.normal(size=patients)[of_row] for at in range(3)}
    return {**features, "p": p, "y": (ndtr(latent) < p).astype(float)}, of_row


def test_rows_that_share_all_features_and_much_of_their_errors_are_named_in_a_warning():
    (data, patient), fix = rows_of_patients(0.5), tu.MCGrad("p", ["x0", "x1", "x2"], trees=3, threads=1)
    with pytest.warns(ClusterWarning, match="2,000 rows share all features and the score with other rows") as caught:
        fix.fit(data, "y")
    assert caught[0].filename == __file__
    fix.fit(data, "y", cluster=patient)
    fix.fit(rows_of_patients(0.0)[0], "y")
