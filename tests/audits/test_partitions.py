"""An audit of rows on a cluster is the audit of the same rows in memory, however they are partitioned."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import trueup as tu
from partitioned import Listed
from same_audit import assert_same_audit
from trueup.audits import audit as audit_module
from trueup.audits import partitions, segments
from trueup.cluster.partitions import open_cluster_frame
from trueup.errors import ArgumentError, ColumnError, DataError, HardPredictionWarning, OneClassWarning
from trueup.kernels import tails

BY = ["region", "product", "employment", "age", "opened"]
ROLES = {"outcome": "outcome", "prediction": "prediction"}


@pytest.fixture(scope="module")
def loans():
    """6,000 loans with weights (some 0), outcomes that are missing, classes, and scores of one place."""
    random = np.random.default_rng(0)
    made = tu.simulate.lending(6_000, seed=0)
    frame = pd.DataFrame({name: np.asarray(made[name]) for name in (*BY, "income", "outcome", "prediction")})
    p_a = np.round(random.random(6_000), 2)
    return frame.assign(
        w=np.round(random.uniform(0, 3, 6_000), 2) * (random.random(6_000) > 0.02),
        sampled=np.where((frame["outcome"] == 1) & (frame["age"] < 40), 10.0, 1.0),
        seen=np.where(random.random(6_000) < 0.05, np.nan, frame["outcome"]),
        few=frame["prediction"].round(2).clip(0.01), p_a=p_a, p_b=1 - p_a,
        kind=np.where(random.random(6_000) < p_a, "a", "b"), soft=random.random(6_000),
        customer=np.minimum(random.zipf(1.5, 6_000), 900), branch=[f"b{number}" for number in random.integers(0, 200, 6_000)],
        count=random.poisson(frame["prediction"]), amount=random.poisson(frame["prediction"]) * random.gamma(2, 0.5, 6_000),
    )  # fmt: skip


@pytest.fixture
def listed(monkeypatch):
    """Audit a list of frames as a frame of a cluster, in about 12 score ranges."""
    monkeypatch.setattr(partitions, "ROWS_PER_TASK", 500)
    monkeypatch.setattr(audit_module, "engine_of", lambda data: "dask" if isinstance(data, Listed) else None)
    monkeypatch.setattr(audit_module, "open_partitions", lambda data, **roles: open_cluster_frame(data, **roles))


def split(frame, parts=4, seed=0):
    """Divide a frame into partitions at random, the last of them empty."""
    part = np.random.default_rng(seed).integers(0, parts, len(frame))
    return Listed([frame[part == at].reset_index(drop=True) for at in range(parts + 1)])


CASES = {
    "plain": {**ROLES, "by": BY},
    "weights": {**ROLES, "by": BY, "weight": "w"},
    "weights of some positives": {**ROLES, "by": BY, "weight": "sampled"},
    "depth 3": {**ROLES, "by": BY, "depth": 3, "min_rows": 100},
    "depth 1": {**ROLES, "by": ["age", "income"], "depth": 1, "bins": {"age": [30], ...: 4}},
    "set aside": {"outcome": "seen", "prediction": "prediction", "by": BY, "unlabelled": "drop", "weight": "w"},
    "clusters": {**ROLES, "by": BY, "cluster": "customer"},
    "clusters, weights": {"outcome": "seen", "prediction": "few", "by": BY[:3], "unlabelled": "drop", "weight": "w",
                          "cluster": "branch"},
    "clusters, amounts": {"outcome": "amount", "prediction": "prediction", "task": "regression", "by": BY[:2], "weight": "w",
                          "cluster": "branch"},
    "clusters, classes": {"outcome": "kind", "prediction": ["p_a", "p_b"], "by": ["region"], "cluster": "branch"},
    "soft": {"outcome": "soft", "prediction": "prediction", "by": ["region"], "adjust": "bh", "task": "binary"},
    "classes": {"outcome": "kind", "prediction": ["p_a", "p_b"], "by": ["region", "product"]},
    "real": {"outcome": "income", "prediction": "age", "task": "regression", "by": BY[:3], "unlabelled": "drop"},
    "real, weights": {"outcome": "income", "prediction": "age", "task": "regression", "by": BY[:2], "weight": "w",
                      "unlabelled": "drop"},
    "counts": {"outcome": "count", "prediction": "prediction", "family": "poisson", "by": BY[:2], "weight": "w"},
    "amounts": {"outcome": "amount", "prediction": "prediction", "task": "regression", "by": BY[:3]},
    "few scores": {"outcome": "outcome", "prediction": "few", "by": BY},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_cluster_computes_what_memory_computes(loans, listed, case):
    assert_same_audit(tu.audit(loans, **CASES[case]), tu.audit(split(loans), **CASES[case]))


@pytest.mark.parametrize("case", ["depth 3", "classes", "real"])
def test_cells_are_counted_first_where_there_are_many(loans, listed, monkeypatch, case):
    monkeypatch.setattr(segments, "MAX_UNCOUNTED_CELLS", 0)
    assert_same_audit(tu.audit(loans, **CASES[case]), tu.audit(split(loans), **CASES[case]))


def test_results_larger_than_a_driver_holds_take_several_passes(loans, listed, monkeypatch):
    monkeypatch.setattr(segments, "BYTES_PER_TALLY", partitions.MAX_RESULT_BYTES // 100)
    here = tu.audit(loans, **CASES["depth 3"])
    reports = []
    there = tu.audit(split(loans), **CASES["depth 3"], progress=lambda *now: reports.append(now))
    assert_same_audit(here, there)
    assert len(reports) > 6


def test_pairs_of_many_segments_take_several_passes(loans, listed, monkeypatch):
    from trueup.audits import clusters

    monkeypatch.setattr(clusters, "BYTES_PER_SEGMENT", partitions.MAX_RESULT_BYTES // 100)
    assert_same_audit(tu.audit(loans, **CASES["clusters"]), tu.audit(split(loans), **CASES["clusters"]))


def test_many_rows_of_one_score_are_read_in_chunks(loans, listed, monkeypatch):
    monkeypatch.setattr(partitions, "MAX_TIED_ROWS", 70)
    for case in ("few scores", "real", "clusters"):
        assert_same_audit(tu.audit(loans, **CASES[case]), tu.audit(split(loans), **CASES[case]))
    constant = loans.assign(prediction=0.1)
    assert_same_audit(tu.audit(constant, **ROLES, by=BY[:2]), tu.audit(split(constant), **ROLES, by=BY[:2]))


@pytest.mark.parametrize("ranges", [1, 7])
def test_the_number_of_score_ranges_does_not_matter(loans, listed, monkeypatch, ranges):
    monkeypatch.setattr(partitions, "ROWS_PER_TASK", 6_000 // ranges + 1)
    assert_same_audit(tu.audit(loans, **CASES["weights"]), tu.audit(split(loans, 2, seed=1), **CASES["weights"]))


def test_the_fingerprint_identifies_rows_whatever_their_order(loans, listed):
    roles = {**ROLES, "by": "region"}
    fingerprint = tu.audit(loans, **roles).summary.fingerprint
    assert tu.audit(loans[::-1], **roles).summary.fingerprint == fingerprint
    assert tu.audit(split(loans, 2, seed=1), **roles).summary.fingerprint == fingerprint
    changed = loans.assign(outcome=np.append(1 - loans["outcome"][:1], loans["outcome"][1:]))
    assert tu.audit(split(changed), **roles).summary.fingerprint != fingerprint


def test_without_workers_rows_are_spilled_here(loans, listed):
    frame = split(loans)
    frame.has_workers = False
    assert_same_audit(tu.audit(loans, **CASES["classes"]), tu.audit(frame, **CASES["classes"]))


def test_what_needs_all_rows_in_memory_is_rejected(loans, listed):
    for given in ({"segments": {"old": np.ones(6_000, bool)}}, {"adjust": "max"}):
        with pytest.raises(ArgumentError, match="memory"):
            tu.audit(split(loans), **ROLES, by=BY, **given)
    with pytest.raises(ArgumentError, match="needs the outcome"):
        tu.audit(split(loans), prediction="prediction")


def test_facts_about_all_rows_are_checked(loans, listed):
    with pytest.warns(OneClassWarning):
        tu.audit(split(loans.assign(outcome=0.0)), **ROLES, by="region")
    with pytest.warns(HardPredictionWarning):
        tu.audit(split(loans.assign(prediction=(loans["prediction"] > 0.1) * 1.0)), **ROLES, by="region")
    with pytest.raises(ColumnError, match="identical to the outcome"):
        tu.audit(split(loans.assign(same=np.where(loans["outcome"] > 0, "bad", "good"))), **ROLES, by=["region", "same"])
    with pytest.raises(DataError, match="all zero"):
        tu.audit(split(loans.assign(w=0.0)), **ROLES, by="region", weight="w")


def test_levels_and_missing_values_of_a_single_partition_are_segments(loans, listed):
    frame = loans.assign(age=np.where(np.arange(6_000) < 200, np.nan, loans["age"]))
    frame["product"] = np.where(np.arange(6_000) < 100, "boat", frame["product"].astype(str))
    parts = Listed([frame[:300], frame[300:].reset_index(drop=True), frame[:0]])
    here, there = tu.audit(frame, **ROLES, by=BY), tu.audit(parts, **ROLES, by=BY)
    assert_same_audit(here, there)
    assert there["product=boat"].n == 100
    assert there["age is missing"].n == 200


def test_certain_predictions_in_one_segment_are_reported_as_in_memory(loans, listed):
    hard = loans["region"] == loans["region"][0]
    frame = loans.assign(prediction=np.where(hard, (loans["prediction"] > 0.1) * 1.0, loans["prediction"]))
    here, there = (tu.audit(data, **ROLES, by="region") for data in (frame, split(frame)))
    assert_same_audit(here, there)
    assert there[f"region={loans['region'][0]}"].sigma == np.inf


def test_progress_is_reported_by_pass(loans, listed):
    reports = []
    tu.audit(split(loans), **ROLES, by="region", progress=lambda done, total: reports.append((done, total)))
    assert [done for done, total in reports if total == 4][:3] == [1, 2, 3]
    assert reports[-1] == (4, 4)


@pytest.mark.parametrize("k3", [-4.0, -1e-12, 0.0, 1e-12, 4.0])
@pytest.mark.parametrize("rise", [0.0, 1.0])
def test_the_p_value_decreases_in_the_range(k3, rise):
    spans = np.linspace(0.01, 40, 4_000)
    out = np.empty(len(spans))
    tails.segment_tails(spans, rise * spans, np.full(len(spans), 9.0), np.full(len(spans), k3), out)
    step = np.diff(out) > 1e-12 * out[1:]
    assert step.sum() <= (abs(k3) == 1e-12)  # where the skewness stops being rounding error
