"""What an audit says of one data set."""

from __future__ import annotations

import json
import math
import pickle
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trueup as tu
import twins
from trueup.audits import text
from trueup.data.frame import read
from trueup.errors import (
    ArgumentError,
    ColumnError,
    HardPredictionWarning,
    MissingPackageError,
    OneClassWarning,
    SoftOutcomeWarning,
)

ROLES = {"outcome": "y", "prediction": "p"}


def _simulated(n=3000, seed=0, weighted=False, **options):
    data = tu.simulate.population(n, seed, **options)
    out = {name: column for name, column in data.items() if name.startswith(("c", "x"))}
    out |= {"y": data["outcome"], "p": data["prediction"]}
    if weighted:
        out["w"] = np.random.default_rng(seed).uniform(0.5, 3, n)
    return out


def _rows_of(data, segment):
    """Find the rows of a segment of text columns by its text."""
    keep = np.ones(len(data["y"]), bool)
    for part in segment.split(" & ") if segment != "all rows" else []:
        name, level = part.split("=")
        keep &= data[name] == level
    return keep


@pytest.mark.parametrize("weighted", [False, True])
def test_every_finding_follows_its_definition(weighted):
    data = _simulated(1500, 3, weighted=weighted, levels=(4, 3, 2), decimals=2)
    audit = tu.audit(data, **ROLES, by=["c0", "c1", "c2"], weight="w" if weighted else None, depth=3, min_rows=20)
    assert audit.tested == len(audit) > 30
    for finding in audit.worst(len(audit)):
        keep = _rows_of(data, finding.segment)
        y, p, w = data["y"][keep], data["p"][keep], data["w"][keep] if weighted else None
        weight = np.ones(keep.sum()) if w is None else w
        v, _ = twins.moments(p, w)
        assert finding.n == keep.sum()
        assert finding.weight == pytest.approx(weight.sum())
        assert finding.observed == pytest.approx(np.average(y, weights=weight))
        assert finding.expected == pytest.approx(np.average(p, weights=weight))
        assert finding.bias == pytest.approx(np.average(y - p, weights=weight), abs=1e-12)
        assert finding.ratio == pytest.approx(finding.observed / finding.expected)
        assert finding.ratio_low <= finding.ratio <= finding.ratio_high
        assert finding.ecce == pytest.approx(twins.span(y, p, w) / weight.sum())
        assert finding.sigma == pytest.approx(twins.span(y, p, w) / math.sqrt(v))
        p_value = max(twins.default_pvalue(y, p, w), twins.weighted_floor(y, p, w))
        assert finding.p_value == pytest.approx(p_value, rel=1e-6)


def test_adjusted_p_values_follow_their_definition():
    data = _simulated(1500, 3, levels=(4, 3, 2), decimals=2)
    data["p"] = 0.8 * data["p"]
    audit = tu.audit(data, **ROLES, by=["c0", "c1", "c2"], depth=3, min_rows=20, segments={"low": data["p"] < 0.3})
    own = [tuple(part.split("=")[0] for part in finding.segment.split(" & ") if part != "all rows") for finding in audit]
    adjusted = twins.holm(audit.columns["p_value"], twins.shares(own))
    np.testing.assert_allclose(audit.columns["p_adjusted"], adjusted, rtol=1e-9)
    assert 5 < (audit.columns["p_adjusted"] < 1).sum() < len(audit)


@pytest.mark.parametrize("adjust", ["holm", "max"])
def test_irrelevant_columns_do_not_hide_an_error_over_all_rows(adjust):
    random = np.random.default_rng(0)
    n = 4000
    p = random.uniform(0.1, 0.6, n)
    data = {"p": p, "y": random.random(n) < p + 0.03} | {
        f"noise{k}": np.array(["a", "b", "c"], object)[random.integers(0, 3, n)] for k in range(40)
    }
    adjusted = []
    for count in (1, 5, 40):
        audit = tu.audit(data, **ROLES, by=[f"noise{k}" for k in range(count)], adjust=adjust)
        assert audit.miscalibrated
        adjusted.append(audit.overall.p_adjusted)
        if adjust == "holm":
            assert audit.overall.p_adjusted <= (2 if count == 1 else 3) * audit.overall.p_value * (1 + 1e-9)
    assert max(adjusted) <= 0.05


def test_the_column_order_does_not_change_which_combinations_are_tested():
    data = _simulated(3000, 2, levels=(6, 6, 6, 6))
    names = ["c0", "c1", "c2", "c3"]
    audits = [tu.audit(data, **ROLES, by=by, max_cells=100) for by in (names, names[::-1])]
    dropped = [{frozenset(name.split(" x ")) for name in audit.dropped} for audit in audits]
    assert dropped[0] == dropped[1]
    assert len(dropped[0]) > 0
    assert f"; {len(dropped[0])} combinations of columns were not tested" in audits[0].verdict
    assert {_sorted_name(finding): finding.p_adjusted for finding in audits[0]} == pytest.approx(
        {_sorted_name(finding): finding.p_adjusted for finding in audits[1]}
    )


def _sorted_name(finding):
    return " & ".join(sorted(finding.segment.split(" & ")))


def test_findings_are_sorted_worst_first_and_untested_last():
    data = _simulated(2000, 1, levels=(30, 4))
    audit = tu.audit(data, **ROLES, by=["c0", "c1"], min_rows=60)
    columns = audit.columns
    testable = columns["testable"]
    assert 0 < testable.sum() < len(audit)
    assert testable[: testable.sum()].all()
    adjusted, sigma = columns["p_adjusted"][testable], columns["sigma"][testable]
    assert (np.diff(adjusted) >= 0).all()
    assert all(sigma[i] >= sigma[i + 1] for i in range(len(sigma) - 1) if adjusted[i] == adjusted[i + 1])


def test_thin_levels_are_listed_but_not_tested():
    data = {"c": np.array(["a"] * 100 + ["b"] * 49, object), "p": np.full(149, 0.5), "y": np.arange(149) % 2}
    audit = tu.audit(data, **ROLES)
    thin = audit["c=b"]
    assert not thin.testable
    assert math.isnan(thin.p_value)
    assert math.isnan(thin.p_adjusted)
    assert thin.note == "not tested: 49 rows"
    assert thin.observed == pytest.approx(np.mean(data["y"][100:]))
    assert audit.tested == 2
    assert audit.thin == 1
    assert "not tested: 1 segment has fewer than 50 rows" in repr(audit)


@pytest.mark.parametrize(("scale", "expected"), [(0.01, True), (0.1, False), (1.0, False)])
def test_scores_that_may_be_percentages_are_noted(scale, expected):
    # The outcomes come by a hundredth of the scores: 0.9 was meant as 0.9%.
    rng = np.random.default_rng(0)
    p = rng.uniform(0.2, 1, 20_000)
    data = {"c": np.array(["a", "b"] * 10_000, object), "p": p, "y": rng.random(20_000) < scale * p}
    audit = tu.audit(data, **ROLES)
    assert ("observed is about a hundredth of expected: are the predictions percentages?" in repr(audit)) == expected
    assert ("are the predictions percentages?" in audit._repr_html_()) == expected


def test_very_many_thin_levels_are_counted_and_not_listed():
    n = 4000
    data = {"c": np.array([f"l{i // 2}" for i in range(n)], object), "p": np.full(n, 0.5), "y": np.arange(n) % 2}
    audit = tu.audit(data, **ROLES)
    assert len(audit) == 1
    assert audit.thin == 2000


def test_user_segments_are_part_of_the_family(scored):
    old = scored["age"] > 60
    audit = tu.audit(scored, **ROLES, by=[], segments={"old": old, "nobody": np.zeros(200, bool)}, min_rows=10)
    assert audit["old"].n == old.sum()
    assert audit.tested == 2
    assert audit["nobody"].n == 0
    assert not audit["nobody"].testable


def test_user_segments_follow_the_rows_that_are_kept(scored):
    scored["y"] = np.where(np.arange(200) < 50, np.nan, scored["y"])
    own = {"first": np.arange(200) < 80}
    assert tu.audit(scored, **ROLES, by=[], segments=own, unlabelled="drop")["first"].n == 30


def test_a_planted_segment_is_the_worst_with_its_ratio():
    shift = tu.simulate.Shift({"c0": "c0_1", "c1": "c1_0"}, 1.0)
    data = _simulated(20_000, 5, levels=(4, 4), shifts=[shift])
    audit = tu.audit(data, **ROLES)
    worst = audit.worst(1)[0]
    assert worst.segment == "c0=c0_1 & c1=c1_0"
    assert worst.p_adjusted < 1e-6
    assert worst.ratio_low > 1.2
    assert audit.miscalibrated
    assert audit.verdict.startswith("miscalibrated: ")
    assert f"1 distinct problem; largest problem c0=c0_1 & c1=c1_0: observed/expected {worst.ratio:.2f}" in audit.verdict
    assert worst.bias > worst.mde


def test_the_verdict_on_a_calibrated_model_is_no_miscalibration_found():
    audit = tu.audit(_simulated(3000, 2), **ROLES)
    assert not audit.miscalibrated
    assert audit.verdict.startswith(f"no miscalibration found: {audit.tested} segments tested at 5% (Holm)")


def test_multicalibration_error_is_the_worst_sigma_in_three_units():
    data = _simulated(3000, 4)
    audit = tu.audit(data, **ROLES)
    assert audit.worst_sigma == max(f.sigma for f in audit.worst(len(audit)))
    noise = math.sqrt(np.sum(data["p"] * (1 - data["p"]))) / 3000
    assert audit.mce_absolute == pytest.approx(audit.worst_sigma * noise)
    rate = data["y"].mean()
    assert audit.mce_relative == pytest.approx(audit.mce_absolute / min(rate, 1 - rate))


def test_wrong_predictions_of_zero_and_one_have_a_p_value_of_zero():
    data = {"p": np.array([0.0] * 60 + [1.0] * 60), "y": np.array([0] * 60 + [1] * 60)}
    with pytest.warns(HardPredictionWarning, match="every prediction in column 'p' is 0 or 1"):
        fine = tu.audit(data, **ROLES).overall
    assert (fine.p_value, fine.sigma) == (1.0, 0.0)
    data["y"][3] = 1
    with pytest.warns(HardPredictionWarning):
        broken = tu.audit(data, **ROLES)
    assert broken.overall.p_value == 0.0
    assert broken.overall.note == "a prediction of 0 or 1 was wrong"
    assert broken.miscalibrated


def test_a_single_class_warns_and_is_audited():
    data = {"p": np.full(100, 0.2), "y": np.zeros(100)}
    with pytest.warns(OneClassWarning):
        audit = tu.audit(data, **ROLES)
    assert audit.miscalibrated
    assert audit.overall.observed == 0.0


def test_soft_labels_are_accepted():
    p = np.linspace(0.1, 0.9, 200)
    audit = tu.audit({"p": p, "y": p}, **ROLES, by=[], task="binary")
    assert audit.overall.p_value == 1.0
    assert tu.audit({"p": p, "y": np.sqrt(p)}, **ROLES, by=[], task="binary").miscalibrated


def test_outcomes_that_are_mostly_neither_0_nor_1_need_a_task():
    p = np.linspace(0.1, 0.9, 200)
    half = np.where(np.arange(200) % 2, p, 1.0)
    tu.audit({"p": p, "y": half}, **ROLES, by=[])
    with pytest.warns(
        SoftOutcomeWarning, match=r'101 of 200 outcomes in column .y. .*\nhint: pass task "regression" for rates'
    ):
        tu.audit({"p": p, "y": np.where(np.arange(200) == 0, 0.5, half)}, **ROLES, by=[])


def test_few_rows_of_real_outcomes_are_approximate_and_fewer_not_tested():
    random = np.random.default_rng(1)
    p = random.normal(size=120)
    data = {"p": p, "y": p + random.normal(size=120), "g": np.array(["a"] * 112 + ["b"] * 8, object)}
    audit = tu.audit(data, **ROLES, task="regression", min_rows=5)
    assert audit["g=a"].note.startswith("p-value approximate")
    assert not audit["g=b"].testable


def test_every_class_and_the_top_label_are_audited():
    random = np.random.default_rng(2)
    p = random.dirichlet([2, 2, 2], 3000)
    y = (random.random(3000)[:, None] > np.cumsum(p, axis=1)).sum(axis=1)
    g = np.array(["u", "v"], object)[random.integers(0, 2, 3000)]
    data = {"p_a": p[:, 0], "p_b": p[:, 1], "p_c": p[:, 2], "y": np.array(["a", "b", "c"], object)[y], "g": g}
    audit = tu.audit(data, outcome="y", prediction=["p_a", "p_b", "p_c"])
    assert audit.tested == 4 * 3
    assert not audit.miscalibrated
    names = set(audit.to_frame()["segment"])
    assert {"top label", "top label & g=u", "class=a", "class=b & g=v"} <= names
    assert audit.overall.segment == "top label"
    keep = g == "v"
    hit = (p.argmax(axis=1) == y)[keep]
    assert audit["top label & g=v"].observed == pytest.approx(hit.mean())
    assert audit["class=b & g=v"].expected == pytest.approx(p[keep, 1].mean())
    shared = tu.audit(data, outcome="y", prediction=["p_a", "p_b", "p_c"], adjust="max", draws=99)
    assert not shared.miscalibrated


def test_beyond_max_cells_the_deepest_combinations_are_dropped_and_listed():
    data = _simulated(3000, 0, levels=(5, 5, 5))
    audit = tu.audit(data, **ROLES, depth=3, max_cells=70)
    assert audit.dropped == ("c0 x c1 x c2", "c1 x c2")
    assert "left out to stay within 70 cells: 2 combinations (c0 x c1 x c2, c1 x c2)" in repr(audit)
    assert tu.audit(data, **ROLES, depth=3).dropped == ()


def test_curves_of_the_worst_and_of_all_rows_add_up():
    data = _simulated(4000, 0, levels=(6, 5), numeric=1)
    audit = tu.audit(data, **ROLES)
    assert audit.overall.curve is not None
    for finding in audit.worst(20):
        curve = finding.curve
        assert curve.rows.sum() == finding.n
        assert np.average(curve.observed, weights=curve.weight) == pytest.approx(finding.observed)
        assert np.average(curve.predicted, weights=curve.weight) == pytest.approx(finding.expected)
        assert (np.diff(curve.predicted) > 0).all()
        assert ((curve.low <= curve.observed) & (curve.observed <= curve.high)).all()


def test_a_thousand_curves_are_computed_at_once_and_others_on_request():
    data = _simulated(60_000, 0, levels=(25, 25, 25, 25))
    audit = tu.audit(data, **ROLES)
    assert len(audit) > 1000
    assert len(audit.curves) in (1000, 1001)
    last = audit.finding(len(audit) - 1)
    assert last.curve.rows.sum() == last.n
    first = audit.held_rows.curve(0)
    for name in ("predicted", "observed", "low", "high", "rows", "weight"):
        assert getattr(first, name).tolist() == getattr(audit.curves[0], name).tolist()
    assert pickle.loads(pickle.dumps(audit)).finding(len(audit) - 1).curve is None  # its rows are not pickled


def test_to_frame_has_the_documented_columns(frame, scored):
    like = frame(scored)
    audit = tu.audit(like, **ROLES, min_rows=20)
    made = audit.to_frame(like=like)
    assert type(made) is type(like)
    contract = [
        "segment", "depth", "n", "weight", "observed", "expected", "ratio", "ratio_low", "ratio_high", "bias", "ecce", "sigma",
        "p_value", "p_adjusted", "mde", "testable", "excess", "share", "ratio_low_adjusted", "ratio_high_adjusted", "state",
    ]  # fmt: skip
    assert list(getattr(made, "column_names", None) or made.columns) == contract
    assert list(audit.to_frame()) == contract


def test_to_dict_is_strict_json():
    data = {
        "p": np.array([0.0] * 60 + [1.0] * 60),
        "y": np.array([1] + [0] * 59 + [1] * 60),
        "c": np.array(["a", "b"] * 60, object),
    }
    with pytest.warns(HardPredictionWarning):
        audit = tu.audit(data, **ROLES, min_rows=80)
    text = json.dumps(audit.to_dict(), allow_nan=False)
    back = json.loads(text)
    assert back["miscalibrated"] is True
    assert back["findings"][0]["sigma"] is None
    assert len(audit.to_dict(most=1)["findings"]) == 1


def test_an_unknown_segment_raises():
    audit = tu.audit(_simulated(300), **ROLES)
    with pytest.raises(ArgumentError, match="no segment 'c9=x' in this audit"):
        audit["c9=x"]


def test_names_with_markup_are_escaped():
    evil = "<script>alert(1)</script>\n\x1b[31m"
    n = 200
    data = {evil: np.array([evil, "b"] * (n // 2), object), "p": np.full(n, 0.5), "y": np.arange(n) % 2}
    with pytest.raises(ColumnError, match="identical to the outcome"):
        tu.audit(data, **ROLES)
    data["y"] = (np.arange(n) // 2) % 2
    data["p"] = np.where(data[evil] == evil, 0.1, 0.5)
    audit = tu.audit(data, **ROLES)
    assert "\x1b" not in repr(audit)
    for shown in (audit._repr_html_(), audit.problems._repr_html_(), audit.problems[0]._repr_html_()):
        assert "<script" not in shown
        assert "&lt;script" in shown
    assert f"{evil}={evil}" in set(audit.to_frame()["segment"])


def test_the_number_of_threads_changes_nothing():
    data = _simulated(5000, 0, levels=(6, 5, 4), numeric=2)
    for adjust in ("holm", "max"):
        one, two = (tu.audit(data, **ROLES, adjust=adjust, draws=19, threads=t, depth=3) for t in (1, 3))
        for name, column in one.columns.items():
            np.testing.assert_array_equal(column, two.columns[name])


def test_the_seed_determines_the_monte_carlo_null():
    data = _simulated(1000, 0)
    first, again, other = (tu.audit(data, **ROLES, adjust="max", draws=199, random_state=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.columns["p_adjusted"], again.columns["p_adjusted"])
    assert (first.columns["p_adjusted"] != other.columns["p_adjusted"]).any()
    assert first.columns["p_adjusted"].min() >= 1 / 200


def test_draws_differ_from_those_of_data_simulated_with_the_same_seed():
    # Outcomes drawn by default_rng(0).random() < p would come back as the first draw of a null with the same stream.
    p = np.full(2000, 0.3)
    y = (np.random.default_rng(0).random(2000) < p).astype(int)
    y[:400] = 1
    audit = tu.audit({"p": p, "y": y}, **ROLES, by=[], adjust="max", draws=19, random_state=0)
    assert audit.overall.p_adjusted == 1 / 20


def test_progress_is_reported():
    reports = []
    tu.audit(_simulated(500), **ROLES, progress=lambda done, total: reports.append((done, total)))
    assert reports[-1][0] == reports[-1][1]


def test_a_table_read_once_can_be_audited_again(scored):
    table = read(scored, **ROLES)
    np.testing.assert_array_equal(tu.audit(table).columns["p_value"], tu.audit(scored, **ROLES).columns["p_value"])


def test_the_input_is_not_modified(scored):
    before = {name: column.copy() for name, column in scored.items()}
    tu.audit(scored, **ROLES, adjust="max", draws=19)
    for name, column in scored.items():
        np.testing.assert_array_equal(column, before[name])


def test_an_audit_can_be_pickled_and_not_modified(scored):
    audit = tu.audit(scored, **ROLES, min_rows=20)
    back = pickle.loads(pickle.dumps(audit))
    assert repr(back) == repr(audit)
    assert back.to_dict() == audit.to_dict()
    with pytest.raises(ValueError, match="read-only"):
        audit.columns["p_value"][0] = 0
    audit.to_frame()["p_value"][0] = 0
    assert repr(audit) == repr(back)


def test_bins_of_an_array_can_be_given_by_position(scored):
    array = np.column_stack([scored["p"], scored["y"], scored["age"]])
    audit = tu.audit(array, outcome=1, bins={2: [30, 50]}, min_rows=10)
    assert {"x2<30", "x2=30 to 49", "x2>=50"} <= set(audit.to_frame()["segment"])


def test_the_refined_p_value_decides_if_only_the_brownian_limit_rejects():
    # 28 events where 12 are expected: the limit says 1e-6, the default 2.6e-5, the exact cumulants 1.6e-5.
    p = np.full(60, 0.2)
    y = (np.arange(60) < 28).astype(float)
    default, limit = twins.default_pvalue(y, p), twins.range_tail(twins.span(y, p) / math.sqrt(60 * 0.16))
    r = math.sqrt(2 * 60 * (28 / 60 * math.log(28 / 12) + 32 / 60 * math.log(32 / 48)))  # the binomial exponent
    refined = twins.range_tail(r) * max(1, r / 4)
    assert limit < refined < 2e-5 < default
    assert tu.audit({"p": p, "y": y}, **ROLES, by=[], alpha=2e-5).overall.p_value == pytest.approx(refined, rel=1e-6)
    assert tu.audit({"p": p, "y": y}, **ROLES, by=[], alpha=0.05).overall.p_value == pytest.approx(default, rel=1e-6)


def test_dense_and_sparse_tallies_agree(monkeypatch):
    # Without room for a table of all cells the rows are sorted by cell instead.
    data = _simulated(3000, 0, levels=(6, 5, 4), numeric=1, weighted=True)
    for more in ({}, {"adjust": "max", "draws": 19}, {"task": "regression"}):
        options = {**ROLES, "weight": "w", "depth": 3, "min_rows": 20, **more}
        dense = tu.audit(data, **options)
        with monkeypatch.context() as patch:
            patch.setattr("trueup.kernels.tally._dense", lambda shape, rows: False)
            sparse = tu.audit(data, **options)
        assert dense.to_frame()["segment"].tolist() == sparse.to_frame()["segment"].tolist()
        for name, column in dense.columns.items():
            np.testing.assert_array_equal(column, sparse.columns[name])


def test_symmetric_scores_have_one_p_value_in_any_row_order():
    random = np.random.default_rng(0)
    half = random.choice([1, 2, 3, 5, 7], 200) / 7
    w, p = np.r_[half, half], np.r_[np.full(200, 0.1), np.full(200, 0.9)]
    y = (random.random(400) < np.where(p < 0.5, 0.35, 0.9)).astype(int)
    found = set()
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(400)
        audit = tu.audit({"p": p[order], "y": y[order], "w": w[order]}, **ROLES, weight="w", by=[])
        found.add(round(audit.overall.p_value, 12))
    assert len(found) == 1


def test_max_cells_is_shared_by_the_classes():
    random = np.random.default_rng(0)
    p = random.dirichlet([2, 2, 2], 2000)
    data = {f"p{k}": p[:, k] for k in range(3)} | {f"c{j}": random.choice(["a", "b", "c", "d"], 2000) for j in range(3)}
    data["y"] = (random.random(2000)[:, None] > np.cumsum(p, axis=1)).sum(axis=1)
    audit = tu.audit(data, outcome="y", prediction=["p0", "p1", "p2"], min_rows=1, max_cells=100)
    assert len(audit.dropped) == 3
    assert audit.tested == 4 * 13


def test_segments_are_found_with_levels_in_any_order_and_ambiguous_ones_raise():
    n = 300
    data = {"a": np.array(["1", "1 & b=2", "2"] * 100, object), "b": np.array(["2"] * 299 + ["3"], object)}
    data |= {"p": np.linspace(0.1, 0.9, n), "y": np.arange(n) % 2}
    audit = tu.audit(data, **ROLES)
    assert audit["b=2 & a=2"].segment == "a=2 & b=2"
    with pytest.raises(ArgumentError, match="several segments are called 'a=1 & b=2'"):
        audit["a=1 & b=2"]
    with pytest.raises(ArgumentError, match="did you mean 'a=2'"):
        audit["a=22"]
    assert [f.segment for f in audit] == audit.to_frame()["segment"].tolist()


def test_a_number_stands_for_the_bin_that_holds_it(scored):
    audit = tu.audit({**scored, "pdays": np.where(scored["new"], -1, 7)}, outcome="y", prediction="p", min_rows=5)
    assert audit["pdays=-1"].segment == "pdays=-1"  # a level of its own
    audit = tu.audit(scored, outcome="y", prediction="p", bins={"age": [30, 50]}, min_rows=5)
    for value, segment in ((17.5, "age<30"), (30, "age=30 to 49"), (49, "age=30 to 49"), (1e9, "age>=50")):
        assert audit[f"age={value}"].segment == segment
        assert audit[f"country=BR & age={value}"].segment == f"country=BR & {segment}"
    with pytest.raises(ArgumentError, match=r"no segment 'age=old'.*\nhint: its levels are age<30, age=30 to 49, age>=50"):
        audit["age=old"]
    with pytest.raises(ArgumentError, match="no segment 'age=nan' in this audit"):
        audit["age=nan"]
    large = tu.audit(scored, outcome="y", prediction="p", bins={"age": [30, 50]}, min_rows=60)
    message = "'age=20 & new=True' is in 'age<30 & new=True', which was not tested\nhint: it has fewer than 60 rows"
    with pytest.raises(ArgumentError, match=message):
        large["age=20 & new=True"]


def test_numbers_in_names_of_columns_are_not_ambiguous():
    random = np.random.default_rng(0)
    p = random.random(400)
    data = {"y": random.random(400) < p, "p": p, "a": random.normal(0, 1, 400), "a=1": random.normal(0, 1, 400)}
    audit = tu.audit(data, outcome="y", prediction="p", bins=2, depth=1, min_rows=5)
    assert audit["a=1=-9"].segment.startswith("a=1<")
    assert audit["a=-9"].segment.startswith("a<")


def test_frames_of_pandas_and_polars_have_the_columns_of_to_frame(scored, monkeypatch):
    audit = tu.audit(scored, outcome="y", prediction="p", min_rows=5)
    columns = audit.to_frame()
    for frame in (audit.to_pandas(), audit.to_polars()):
        assert list(frame.columns) == list(columns)
        assert frame["segment"].to_list() == columns["segment"].tolist()
        np.testing.assert_array_equal(frame["ratio"].to_numpy(), columns["ratio"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"'pandas', which is not installed\nhint: pip install pandas"):
        audit.to_pandas()


def test_the_verdict_states_errors_that_the_mean_hides():
    p = np.repeat([0.2, 0.8], 1000)
    y = np.r_[np.arange(1000) < 400, np.arange(1000) < 600].astype(int)
    # Observed 0.4 at 0.2 and 0.6 at 0.8: 200 more and 200 fewer than expected, and the curve crosses the diagonal at 0.5.
    scores = "scores too low below 0.50 (200 more than expected) and too high above (200 fewer)"
    for tolerance, state in ((None, "miscalibrated"), ("5%", "material"), ("90%", "within tolerance")):
        audit = tu.audit({"p": p, "y": y, "g": np.full(2000, "a")}, **ROLES, by=["g"], tolerance=tolerance)
        assert audit.state == state
        mean = "observed/expected 1.00, within noise on average"
        assert f"largest problem all rows: {mean}" in audit.verdict
        assert f"(100% of rows), with {scores}" in audit.verdict
        assert repr(audit).count(scores) == 1  # g=a is folded
        assert repr(audit.problems).endswith(f"all rows: {scores}")
        assert scores in audit.problems[0]._repr_html_()
        bare = replace(audit.overall, curve=None)
        assert text.describe_problem(bare).startswith(f"{mean}, errors varying with the score, ecce 0.10")


def test_scores_are_named_where_errors_vary_and_not_where_nothing_was_found():
    rng = np.random.default_rng(0)
    p = np.tile(np.linspace(0.05, 0.95, 10), 400)
    groups = np.repeat(["even", "off"], 2000)
    y = rng.random(4000) < np.where(groups == "off", 0.5 + 0.2 * (p - 0.5), p)
    audit = tu.audit({"p": p, "y": y.astype(int), "g": groups}, **ROLES, by=["g"])
    assert text.describe_scores(audit["g=even"]) == ""
    assert text.score_lines(audit, audit.verdict) == [f"all rows: {text.describe_scores(audit.overall)}"]
    shifted = tu.audit({"p": p, "y": (rng.random(4000) < 0.5 * p).astype(int)}, **ROLES, by=[])
    assert "within noise on average" not in shifted.verdict
    assert "scores too" not in shifted.verdict  # too high at all scores


def test_real_outcomes_without_noise_have_a_p_value_of_zero_or_one():
    p = np.linspace(0, 1, 60)
    right = tu.audit({"p": p, "y": p}, **ROLES, task="regression", by=[])
    assert (right.overall.p_value, right.miscalibrated) == (1.0, False)
    off = tu.audit({"p": np.arange(60.0), "y": np.arange(60.0) + 1}, **ROLES, task="regression", by=[])
    assert off.overall.p_value == 0.0
    assert off.overall.note == "differs without any noise"


def test_an_excess_with_weights_is_called_a_weighted_sum(scored):
    for weights, words in (
        ({}, "excess is the sum of"),
        ({"weight": np.full(len(scored["p"]), 2.0)}, "excess is the weighted sum of"),
    ):
        audit = tu.audit(scored, **ROLES, **weights)
        assert any(words in note for note in audit.notes)


def test_weights_passed_as_an_array_are_named_in_the_result(scored):
    audit = tu.audit(scored, **ROLES, weight=np.ones(200))
    assert audit.schema.weight == "weight"


def test_numpy_settings_are_converted_for_json(scored):
    audit = tu.audit(scored, **ROLES, min_rows=np.int64(30), random_state=np.int64(3), alpha=np.float64(0.05))
    assert json.loads(json.dumps(audit.to_dict()))["settings"]["min_rows"] == 30


# -- laws ---------------------------------------------------------------------------------------------------------


@st.composite
def small_data(draw):
    n = draw(st.integers(4, 60))
    scores = st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.8, 1.0]) | st.floats(0, 1, width=32)
    data = {
        "p": np.array(draw(st.lists(scores, min_size=n, max_size=n)), float),
        "y": np.array([0, 1, *draw(st.lists(st.integers(0, 1), min_size=n - 2, max_size=n - 2))], float),
        "c": np.array(draw(st.lists(st.sampled_from(["a", "b", None]), min_size=n, max_size=n)), object),
        "x": np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 3.5, np.nan]), min_size=n, max_size=n))),
    }
    data["w"] = np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=n, max_size=n)))
    return data


# Scores of 0 and 1 alone are warned of, and may come up here.
HARD = pytest.mark.filterwarnings("ignore::trueup.errors.HardPredictionWarning")
SMALL = {"outcome": "y", "prediction": "p", "by": ["c", "x"], "weight": "w", "min_rows": 2, "threads": 1}


@HARD
@settings(max_examples=60)
@given(small_data(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(data, random):
    order = list(range(len(data["y"])))
    random.shuffle(order)
    first = tu.audit(data, **SMALL)
    second = tu.audit({name: column[order] for name, column in data.items()}, **SMALL)
    assert sorted(first.to_frame()["segment"]) == sorted(second.to_frame()["segment"])
    for name in first.to_frame()["segment"]:
        a, b = first[name], second[name]
        for column in ("n", "observed", "expected", "bias", "ecce", "sigma", "p_value", "p_adjusted", "mde", "ratio_low"):
            assert getattr(a, column) == pytest.approx(getattr(b, column), rel=1e-9, abs=1e-12, nan_ok=True)


@HARD
@settings(max_examples=60)
@given(small_data())
def test_a_weight_of_two_is_the_row_twice_for_point_estimates(data):
    repeated = {name: np.repeat(column, data["w"].astype(int)) for name, column in data.items() if name != "w"}
    first = tu.audit(data, **SMALL)
    second = tu.audit(repeated, **{**SMALL, "weight": None})
    for name in first.to_frame()["segment"]:
        a = first[name]
        if a.n < 2 or "rare levels" in name:  # which levels are rare depends on the number of rows
            continue
        b = second[name]
        for column in ("weight", "observed", "expected", "bias", "ratio", "ecce"):
            assert getattr(a, column) == pytest.approx(getattr(b, column), rel=1e-9, abs=1e-12, nan_ok=True)


@HARD
@settings(max_examples=30)
@given(small_data())
def test_pandas_polars_and_pyarrow_agree_to_the_last_bit(data):
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    lists = {name: column.tolist() for name, column in data.items()}
    lists["x"] = [None if value != value else value for value in lists["x"]]
    audits = [tu.audit(make(lists), **SMALL) for make in (pd.DataFrame, pl.DataFrame, pa.table)]
    for other in audits[1:]:
        assert audits[0].to_frame()["segment"].tolist() == other.to_frame()["segment"].tolist()
        for name, column in audits[0].columns.items():
            np.testing.assert_array_equal(column, other.columns[name])


def test_intervals_of_rates_of_zero_and_one_touch_the_ends():
    p = np.full(60, 0.1)
    for rate in (0.0, 1.0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one outcome only
            whole = tu.audit({"y": np.full(60, rate), "p": p}, outcome="y", prediction="p").overall
        assert (whole.ratio_low == 0.0) if rate == 0 else (whole.ratio_high == pytest.approx(10.0, rel=1e-15))


def test_rare_levels_are_tested_together_alone_and_in_combinations():
    random = np.random.default_rng(0)
    n = 6000
    rare = random.random(n) < 0.05
    country = np.where(rare, [f"r{k}" for k in random.integers(0, 40, n)], np.array(["BR", "DE"])[random.integers(0, 2, n)])
    device = np.array(["tv", "web"])[random.integers(0, 2, n)]
    p = np.full(n, 0.3)
    data = {"country": country.astype(object), "device": device.astype(object), "p": p, "y": random.random(n) < p}
    audit = tu.audit(data, **ROLES)
    name = f"country=({len(set(country[rare]))} rare levels)"
    for keep, segment in ((rare, name), (rare & (device == "tv"), f"{name} & device=tv")):
        finding = audit[segment]
        assert finding.testable
        assert finding.n == keep.sum()
        assert finding.observed == pytest.approx(data["y"][keep].mean())
        assert finding.p_value == pytest.approx(twins.default_pvalue(data["y"][keep], p[keep]), rel=1e-6)
        assert finding.curve.rows.sum() == keep.sum()
    assert not audit["country=r3"].testable
    assert audit["country=r3"].n == (country == "r3").sum()
    assert audit.thin == len(set(country[rare]))
    everything = tu.audit({"id": np.repeat(np.arange(n // 5), 5).astype(str), "p": p, "y": data["y"]}, **ROLES)
    assert [finding.segment for finding in everything] == ["all rows"]


def test_a_level_named_like_pooled_rare_levels_is_another_segment():
    random = np.random.default_rng(0)
    n = 3000
    rare = np.arange(n) < 120
    country = np.where(rare, np.char.add("r", (np.arange(n) % 6).astype(str)), "(6 rare levels)").astype(object)
    data = {"country": country, "p": np.full(n, 0.3), "y": random.random(n) < 0.3}
    segments = {"country=(6 rare levels, pooled)": random.random(n) < 0.5}
    audits = [tu.audit(data, **ROLES, segments=own) for own in (None, segments)]
    assert audits[0]["country=(6 rare levels)"].n == n - 120
    assert audits[0]["country=(6 rare levels, pooled)"].n == 120
    assert audits[1]["country=(6 rare levels, pooled)"].n == segments["country=(6 rare levels, pooled)"].sum()
    assert audits[1]["country=(6 rare levels, pooled, pooled)"].n == 120
    assert all(len(audit.ranks) == len(audit) for audit in audits)
    # In another audit other levels are rare: the pooled segment is the same, whatever its label.
    other = tu.audit({**data, "country": np.where(country == "r5", "r4", country)}, **ROLES)
    assert other["country=(5 rare levels)"].n == 120
    rank = other.ranks[("", False), ("country", True)]
    assert other.finding(rank).segment == "country=(5 rare levels)"
    assert audits[0].finding(audits[0].ranks[("", False), ("country", True)]).n == 120
    assert other.finding(other.ranks[("", False), ("country=(6 rare levels)", False)]).n == n - 120


@pytest.mark.parametrize("levels", [20, 300])
def test_an_error_shared_by_rare_levels_is_found(levels):
    found = 0
    for seed in range(5):
        random = np.random.default_rng(seed)
        n, size = 20_000, 20
        code = np.where(np.arange(n) < levels * size, np.arange(n) // size, levels + random.integers(0, 5, n))
        p = random.uniform(0.02, 0.1, n)
        y = random.random(n) < np.where(code < levels, 2 * p, p)
        audit = tu.audit({"c": [f"l{one}" for one in code], "p": p, "y": y}, **ROLES)
        found += audit[f"c=({levels} rare levels)"].p_adjusted <= 0.05
    assert found >= 4
