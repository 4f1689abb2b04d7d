"""An audit of rows in parts is that of the same rows in memory, but for a bound on sigma that is true."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup as tu
from partitioned import Listed
from trueup.audits import layout, merged, run
from trueup.audits.folded import Gather
from trueup.audits.layout import Layout, Marks, cut_again, lay_out, share_out
from trueup.audits.text import deviation, worst_deviation
from trueup.cluster.partitions import open_cluster_frame
from trueup.errors import ArgumentError, ColumnError, DataError, HardPredictionWarning, OneClassWarning
from trueup.kernels import tails
from trueup.reports.export import csv_lines

BY = ["region", "product", "employment", "age", "opened"]
ROLES = {"outcome": "outcome", "prediction": "prediction"}
EQUAL = ("n", "weight", "observed", "expected", "ratio", "ratio_low", "ratio_high", "bias", "mde", "testable")


@pytest.fixture(scope="module")
def loans():
    """6,000 loans with weights (some 0), outcomes that are missing, classes, and scores of one place."""
    random = np.random.default_rng(0)
    made = tu.simulate.lending(6_000, seed=0)
    frame = pd.DataFrame({name: np.asarray(made[name]) for name in (*BY, "income", "outcome", "prediction")})
    p_a = np.round(random.random(6_000), 2)
    return frame.assign(
        w=np.round(random.uniform(0, 3, 6_000), 2) * (random.random(6_000) > 0.02),
        seen=np.where(random.random(6_000) < 0.05, np.nan, frame["outcome"]),
        few=frame["prediction"].round(2).clip(0.01), p_a=p_a, p_b=1 - p_a,
        kind=np.where(random.random(6_000) < p_a, "a", "b"), soft=random.random(6_000),
    )  # fmt: skip


@pytest.fixture
def listed(monkeypatch):
    """Let a list of frames be audited as a frame of a cluster is."""
    monkeypatch.setattr(run, "engine_of", lambda data: "dask" if isinstance(data, Listed) else None)
    monkeypatch.setattr(run, "open_partitions", lambda data, **roles: open_cluster_frame(data, **roles))


def cut(frame, parts=4, seed=0):
    """Cut a frame into parts at random, the last of them empty."""
    part = np.random.default_rng(seed).integers(0, parts, len(frame))
    return Listed([frame[part == at].reset_index(drop=True) for at in range(parts + 1)])


def assert_within(one, other):
    """Compare an audit in memory with one of parts."""
    mine, theirs = ({f.segment: f for f in audit} for audit in (one, other))
    assert mine.keys() == theirs.keys()
    for segment, a in mine.items():
        b = theirs[segment]
        for name in EQUAL:
            assert getattr(b, name) == pytest.approx(getattr(a, name), rel=1e-9, abs=1e-12, nan_ok=True), (segment, name)
        assert abs(a.sigma - b.sigma) <= b.sigma_bound + 1e-9 * (1 + a.sigma), segment
        noise = a.ecce / a.sigma if 0 < a.sigma < np.inf else 0.0
        assert b.ecce == pytest.approx(a.ecce, rel=1e-9, abs=noise * b.sigma_bound + 1e-12), segment
        if a.testable and b.sigma_bound == 0 and b.p_value > 0.06:  # none of those that are refined in memory
            assert b.p_value == pytest.approx(a.p_value, rel=1e-6)
    facts = ("rows", "unlabelled", "weightless", "thin", "dropped", "tested")
    assert [getattr(one, name) for name in facts] == [getattr(other, name) for name in facts]
    for name in ("global_sigma", "prevalence"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-9)


CASES = {
    "plain": {**ROLES, "by": BY},
    "weights": {**ROLES, "by": BY, "weight": "w"},
    "depth 3": {**ROLES, "by": BY, "depth": 3, "min_rows": 100},
    "depth 1": {**ROLES, "by": ["age", "income"], "depth": 1, "bins": {"age": [30], ...: 4}},
    "set aside": {"outcome": "seen", "prediction": "prediction", "by": BY, "unlabelled": "drop", "weight": "w"},
    "soft": {"outcome": "soft", "prediction": "prediction", "by": ["region"], "adjust": "bh"},
    "classes": {"outcome": "kind", "prediction": ["p_a", "p_b"], "by": ["region", "product"]},
    "few scores": {"outcome": "outcome", "prediction": "few", "by": BY},
}


@pytest.mark.parametrize("case", CASES)
def test_parts_give_what_memory_gives_within_the_bound(loans, listed, case):
    told = CASES[case]
    here, there = tu.audit(loans, **told), tu.audit(cut(loans), **told)
    assert there.bounded
    assert not here.bounded
    assert_within(here, there)
    assert there.columns["sigma_bound"].max() <= merged.WIDE
    # A p-value holds: it is that of the shortest path there may be.
    sure = {f.segment: f.p_value for f in tu.audit(cut(loans, 1), **told)}
    assert all(f.p_value >= sure[f.segment] * (1 - 1e-9) for f in there if f.testable)


@pytest.mark.parametrize("case", [*CASES, "real"])
def test_exact_gives_what_memory_gives(loans, listed, case):
    real = {"outcome": "income", "prediction": "age", "task": "regression", "by": ["region"], "unlabelled": "drop"}
    told = CASES.get(case, real)
    here, there = tu.audit(loans, **told), tu.audit(cut(loans), exact=case != "real", **told)
    mine, theirs = ({f.segment: f for f in audit} for audit in (here, there))
    assert mine.keys() == theirs.keys()
    for segment, a in mine.items():
        for name in ("sigma", "ecce", "p_value", "p_adjusted", *EQUAL):
            assert getattr(theirs[segment], name) == pytest.approx(getattr(a, name), rel=1e-9, abs=1e-12, nan_ok=True)
        if a.curve is not None and theirs[segment].curve is not None:
            np.testing.assert_allclose(theirs[segment].curve.observed, a.curve.observed, rtol=1e-9, atol=1e-12)
    assert not there.bounded


def test_the_fingerprint_of_exact_is_that_of_the_rows_in_their_order(loans, listed):
    order = Listed([loans[:2_000], loans[2_000:].reset_index(drop=True)])
    here, there = tu.audit(loans, **ROLES, by="region"), tu.audit(order, **ROLES, by="region", exact=True)
    assert there.portrait.fingerprint == here.portrait.fingerprint


def test_a_fingerprint_of_parts_knows_the_rows_and_not_their_order(loans, listed):
    told = {**ROLES, "by": "region"}
    marks = [tu.audit(parts, **told).portrait.fingerprint for parts in (cut(loans), cut(loans, 2, seed=1))]
    other = loans.assign(outcome=np.append(1 - loans["outcome"][:1], loans["outcome"][1:]))
    assert marks[0] == marks[1]
    assert marks[0].startswith("sum-")
    assert tu.audit(cut(other), **told).portrait.fingerprint != marks[0]


@pytest.mark.parametrize("parts", [1, 20])
def test_parts_that_are_ranges_of_the_score_are_exact(loans, listed, parts):
    ordered = loans.sort_values("prediction")
    part = np.minimum(np.arange(len(ordered)) * parts // len(ordered), parts - 1)
    shuffled = np.random.default_rng(0).permutation(parts)
    found = tu.audit(Listed([ordered[part == at].reset_index(drop=True) for at in shuffled]), **ROLES, by=BY[:3])
    assert found.columns["sigma_bound"].max() == 0
    assert_within(tu.audit(loans, **ROLES, by=BY[:3]), found)


def test_a_score_of_few_values_is_exact_however_the_rows_lie(loans, listed):
    found = tu.audit(cut(loans, 12), outcome="outcome", prediction="few", by=BY[:3])
    assert found.columns["sigma_bound"].max() == 0


def test_a_bound_of_few_cells_is_true_and_other_looks_narrow_it(loans, listed, monkeypatch):
    monkeypatch.setattr(share_out, "__defaults__", (20_000,))
    monkeypatch.setattr(merged._groups, "__defaults__", (20_000,))
    monkeypatch.setattr(merged, "BUDGET", 20_000)
    monkeypatch.setattr(merged, "FEW_GROUPS", 100)
    here, widest = tu.audit(loans, **ROLES, by=BY[:3]), []
    for looks in (0, 1, 3):
        monkeypatch.setattr(merged, "LOOKS", looks)
        found = tu.audit(cut(loans), **ROLES, by=BY[:3])
        assert_within(here, found)
        widest.append(found.columns["sigma_bound"].max())
    assert widest[0] > 2 * widest[1] > 2 * widest[2]


def test_curves_and_portraits_are_those_of_memory_but_for_a_cell(loans, listed):
    here, there = tu.audit(loans, **ROLES, by=BY), tu.audit(cut(loans), **ROLES, by=BY)
    assert set(here.curves) == set(there.curves)
    for finding in there:
        if finding.curve is not None:
            assert finding.curve.rows.sum() == finding.n
    np.testing.assert_allclose(there.overall.curve.rows, here.overall.curve.rows, atol=5)
    np.testing.assert_allclose(there.overall.curve.observed, here.overall.curve.observed, atol=0.01)
    assert len(there.portrait.low) == len(there.overall.curve)
    for name, value in here.portrait.scores.items():
        assert there.portrait.scores[name] == pytest.approx(value, rel=0.2), name
    for name in ("brier", "log loss", "auc", "observed", "expected"):
        assert there.portrait.scores[name] == pytest.approx(here.portrait.scores[name], rel=1e-3), name
    assert there.portrait.histogram.weight.sum() == pytest.approx(6_000)


def test_the_bound_is_told_wherever_sigma_is(loans, listed, monkeypatch, tmp_path):
    monkeypatch.setattr(merged, "LOOKS", 0)
    monkeypatch.setattr(share_out, "__defaults__", (20_000,))
    here, there = tu.audit(loans, **ROLES, by=BY), tu.audit(cut(loans, 8), **ROLES, by=BY)
    whole = there.overall
    assert whole.sigma_bound > 0
    assert f"{deviation(whole.sigma, whole.sigma_bound)} sigma" in repr(whole)
    assert "± " in repr(there)
    assert "exact=True" in repr(there)
    assert list(there.to_frame()) == [*here.to_frame(), "sigma_bound"]
    assert list(there.to_frame(like=loans).columns)[-1] == "sigma_bound"
    assert next(csv_lines(there)).strip().endswith(",sigma_bound")
    assert next(csv_lines({"a": here, "b": there})).strip().endswith(",sigma_bound")
    assert "sigma_bound" not in next(csv_lines(here))
    assert len({line.count(",") for line in csv_lines({"a": here, "b": there}) if '"' not in line}) == 1
    told = json.loads(json.dumps(there.to_dict()))
    assert all("sigma_bound" in one for one in (told["overall"], *told["findings"]))
    assert "sigma_bound" not in here.to_dict()["overall"]
    for results, name in ((there, "one.html"), ([here, there], "two.html"), (there, "one.md")):
        tu.report(results, tmp_path / name)
        assert re.search(r"\d ± 0\.\d", (tmp_path / name).read_text())
    tu.report(here, tmp_path / "exact.html")
    assert f"{deviation(whole.sigma, whole.sigma_bound)} sigma" in (tmp_path / "one.html").read_text()
    assert not re.search(r"\d ± [\d.]+ sigma", (tmp_path / "exact.html").read_text())


def test_what_needs_all_rows_in_memory_is_refused(loans, listed):
    for told in ({"segments": {"old": np.ones(6_000, bool)}}, {"adjust": "max"}):
        with pytest.raises(ArgumentError, match="memory"):
            tu.audit(cut(loans), **ROLES, by=BY, **told)
    with pytest.raises(ArgumentError, match="needs the outcome"):
        tu.audit(cut(loans), prediction="prediction")


def test_what_all_rows_have_in_common_is_told(loans, listed):
    with pytest.warns(OneClassWarning):
        tu.audit(cut(loans.assign(outcome=0.0)), **ROLES, by="region")
    with pytest.warns(HardPredictionWarning):
        tu.audit(cut(loans.assign(prediction=(loans["prediction"] > 0.1) * 1.0)), **ROLES, by="region")
    with pytest.raises(ColumnError, match="identical to the outcome"):
        tu.audit(cut(loans.assign(same=np.where(loans["outcome"] > 0, "bad", "good"))), **ROLES, by=["region", "same"])
    with pytest.raises(DataError, match="all zero"):
        tu.audit(cut(loans.assign(w=0.0)), **ROLES, by="region", weight="w")


def test_a_level_and_a_missing_value_of_one_part_are_segments(loans, listed):
    frame = loans.assign(age=np.where(np.arange(6_000) < 200, np.nan, loans["age"]))
    frame["product"] = np.where(np.arange(6_000) < 100, "boat", frame["product"].astype(str))
    parts = Listed([frame[:300], frame[300:].reset_index(drop=True), frame[:0]])
    here, there = tu.audit(frame, **ROLES, by=BY), tu.audit(parts, **ROLES, by=BY)
    assert_within(here, there)
    assert there["product=boat"].n == 100
    assert there["age is missing"].n == 200


@pytest.mark.parametrize("k3", [-4.0, -1e-12, 0.0, 1e-12, 4.0])
@pytest.mark.parametrize("rise", [0.0, 1.0])
def test_the_p_value_falls_in_the_range(k3, rise):
    spans = np.linspace(0.01, 40, 4_000)
    out = np.empty(len(spans))
    tails.segment_tails(spans, rise * spans, np.full(len(spans), 9.0), np.full(len(spans), k3), out)
    step = np.diff(out) > 1e-12 * out[1:]
    assert step.sum() <= (abs(k3) == 1e-12)  # where a skewness stops being taken for rounding


def test_a_p_value_is_the_largest_of_what_may_be(loans):
    # Of a path that goes as far up as down, whichever comes first: skewness makes one of them likelier.
    limits = np.array([[2.0, -2.0, 4.0, 4.2, 3.9, 4.1, 4.1, 0.0]])
    v, k3 = np.array([1.0]), np.array([0.5])
    ups, downs = (float(merged.segment_pvalues(np.array([4.0]), np.array([at]), v, k3)[0]) for at in (4.0, 0.0))
    assert merged._pvalues(limits, v, k3)[0] == max(ups, downs) > min(ups, downs)


def test_a_p_value_holds_where_a_skewness_stops_being_taken_for_rounding():
    # Just behind the step the p-value is larger than at either end of what may be.
    v, k3, limits = np.array([1.0]), np.array([2e-10]), np.array([[3.0, -2.0, 4.999, 6.0, 4.999, 6.0, 6.0, 0.0]])
    spans = np.linspace(4.999, 6.0, 20_000)
    exact = merged.segment_pvalues(spans, spans, np.ones(20_000), np.full(20_000, 2e-10))
    assert exact.max() > max(exact[0], exact[-1])
    assert merged._pvalues(limits, v, k3)[0] >= exact.max() * (1 - 1e-9)


def test_certain_predictions_that_are_contradicted_have_a_p_value_of_nought_however_little_is_sure():
    # One row too many at 0 and one too few at 1, in one cell: its ends say nothing.
    limits = np.array([[0.0, 0.0, 0.0, 2.0, 0.0, 2.0, 2.0, 0.0], [0.0] * 8])
    assert merged._pvalues(limits, np.zeros(2), np.zeros(2)).tolist() == [0.0, 1.0]


def test_a_segment_of_certain_predictions_among_others_is_told_as_in_memory(loans, listed):
    hard = loans["region"] == loans["region"][0]
    frame = loans.assign(prediction=np.where(hard, (loans["prediction"] > 0.1) * 1.0, loans["prediction"]))
    here, there = (tu.audit(data, **ROLES, by="region") for data in (frame, cut(frame)))
    name = f"region={loans['region'][0]}"
    assert here[name].sigma == there[name].sigma == np.inf
    assert there[name].p_value == here[name].p_value == 0
    assert there[name].ecce == pytest.approx(here[name].ecce)


@given(st.floats(0, 400), st.floats(1e-9, 30))
def test_what_is_written_of_a_bound_holds_and_is_not_much_wider(sigma, bound):
    shown, half = map(float, deviation(sigma, bound).split(" ± "))
    assert abs(shown - sigma) + bound <= half * (1 + 1e-9)
    assert half <= 2 * bound + max(0.002, 0.02 * sigma)


def test_the_worst_sigma_may_be_that_of_a_segment_of_which_less_is_known(loans, listed):
    found = tu.audit(cut(loans), **ROLES, by="region")
    columns = {**found.columns, "sigma": found.columns["sigma"].copy(), "sigma_bound": np.zeros(len(found))}
    columns["sigma"][:2], columns["sigma_bound"][:2] = (40.0, 39.9), (0.01, 0.5)
    told = dataclasses.replace(found, columns=columns)
    assert worst_deviation(told) == "40.0 ± 0.4"


def test_cells_end_where_parts_do():
    marks = Marks.of(np.array([0.1, 0.2])) + Marks.of(np.array([0.5, 0.9])) + Marks.of(np.array([0.3, 0.5]))
    assert marks.barriers().tolist() == [0.3, 0.5, np.nextafter(0.5, 1)]
    found = lay_out(marks)
    assert {0.3, 0.5} <= set(found.edges)
    assert (np.diff(found.sizes) <= 0).all()
    assert len(lay_out(Marks.of(np.empty(0))).edges) == 0


def test_marks_of_many_parts_are_few(monkeypatch):
    monkeypatch.setattr(layout, "MOST_MARKS", 6_000)
    random = np.random.default_rng(0)
    marks = Marks.of(random.random(5_000))
    for _ in range(10):
        marks += Marks.of(random.random(5_000))
    assert len(marks.scores) <= 6_000
    assert marks.rows.sum() == 55_000
    edges, _ = marks.edges()
    assert np.median(edges) == pytest.approx(0.5, abs=0.02)


def test_places_are_finer_than_cells_and_never_cross_them():
    p = np.sort(np.concatenate([np.random.default_rng(0).random(3_000), np.full(500, 0.25)]))
    found = lay_out(Marks.of(p))
    finer = found.finer(p)
    np.testing.assert_array_equal(finer // layout.RATIO, found.place(p))
    assert (np.diff(finer) >= 0).all()
    alone = Layout(np.empty(0), np.zeros((1, 1), np.int32), (0.0, 1.0))
    assert alone.finer(np.array([0.0, 0.5, 1.0])).tolist() == [0, layout.RATIO // 2, layout.RATIO - 1]


def test_small_segments_have_few_cells_and_all_of_them_fit():
    found = lay_out(Marks.of(np.random.default_rng(0).random(4_000)))
    (room,) = share_out([found], np.array([10, 100, 100_000]))
    sizes = np.diff(room.first)
    assert sizes[0] <= 40
    assert sizes[0] < sizes[1] < sizes[2]
    (less,) = share_out([found], np.array([100_000] * 10), budget=33 * 10 * 600)
    assert np.diff(less.first).max() <= 600
    pieces = cut_again(found, less, np.arange(less.first[-1]) % 7 == 0, np.ones(10), 33 * 10 * 4_000)
    assert pieces.starts[-1] <= 2 * 10 * 4_000
    assert len(pieces.numbers(int(less.first[-1]))) == less.first[-1]


def test_progress_is_told_to_its_end(loans, listed):
    told = []
    tu.audit(cut(loans), **ROLES, by="region", progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_no_rows_are_gathered_from_an_empty_part(loans):
    with open_cluster_frame(cut(loans), **ROLES, features=["region"]) as parts:
        found = Gather([], parts.schema, {})(list(parts.iter_tables())[-1], 4)
    assert (len(found.facts), len(found.marks[""].scores), found.prints) == (0, 0, (0, 0))
