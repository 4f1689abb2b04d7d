"""Distinct problems: one for every error that was planted, and none for what another explains."""

from __future__ import annotations

import numpy as np
import pytest

import trueup as tu
from trueup.audits import problems as module
from trueup.audits.materiality import SEVERITY, certain_excess

ROLES = {"outcome": "y", "prediction": "p"}


def planted(n, seed, *errors, weight=None):
    """Draw calibrated rows of four columns, but for ``errors``: pairs of a segment (a dict) and a factor of the odds."""
    random = np.random.default_rng(seed)
    data = {name: np.array([f"{name}{level}" for level in range(4)])[random.integers(0, 4, n)] for name in "abcd"}
    data["p"] = random.beta(2, 6, n)
    odds = data["p"] / (1 - data["p"])
    for segment, factor in errors:
        inside = np.logical_and.reduce([data[name] == level for name, level in segment.items()])
        odds = np.where(inside, factor * odds, odds)
    data["y"] = (random.random(n) < odds / (1 + odds)).astype(int)
    return data


def names(audit):
    return [problem.finding.segment for problem in audit.problems]


def test_a_calibrated_model_has_no_problems():
    assert tu.audit(planted(8000, 0), **ROLES).problems == ()


def test_one_error_is_one_problem_however_often_it_is_found():
    audit = tu.audit(planted(40_000, 1, ({"a": "a1"}, 2.0)), **ROLES)
    assert names(audit) == ["a=a1"]
    assert audit.rejected > 5
    assert len(audit.problems[0].folded) == audit.rejected - 1


def test_two_errors_are_two_problems():
    audit = tu.audit(planted(60_000, 2, ({"a": "a1"}, 1.8), ({"b": "b2", "c": "c3"}, 0.4)), **ROLES)
    assert set(names(audit)) == {"a=a1", "b=b2 & c=c3"}


def test_a_segment_within_another_is_a_problem_of_its_own_if_its_error_differs():
    audit = tu.audit(planted(60_000, 3, ({"a": "a1"}, 1.5), ({"a": "a1", "b": "b2"}, 3.0)), **ROLES)
    assert "a=a1 & b=b2" in names(audit)
    assert len(audit.problems) <= 3


def test_of_segments_with_the_same_rows_the_shortest_name_is_listed():
    data = planted(20_000, 4, ({"a": "a1"}, 2.5))
    data["copy"] = np.char.replace(data["a"], "a", "z")
    audit = tu.audit(data, **ROLES)
    assert len(audit.problems) == 1
    assert audit.problems[0].finding.depth == 1
    frame = audit.to_frame()
    rejected = set(frame["segment"][frame["p_adjusted"] <= 0.05])
    assert {audit.problems[0].finding.segment, *audit.problems[0].folded} == rejected


def test_every_finding_is_a_problem_or_folded_under_one_and_no_two_share_their_rows():
    data = planted(30_000, 5, ({"a": "a1"}, 2.0), ({"b": "b0"}, 0.5), ({"c": "c2", "d": "d2"}, 3.0))
    audit = tu.audit(data, **ROLES)
    listed = [name for problem in audit.problems for name in (problem.finding.segment, *problem.folded)]
    frame = audit.to_frame()
    assert sorted(listed) == sorted(frame["segment"][frame["p_adjusted"] <= 0.05])
    masks = []
    for problem in audit.problems:
        mask = np.ones(len(data["y"]), bool)
        for part in problem.finding.segment.split(" & "):
            column, _, level = part.partition("=")
            mask &= data[column] == level if level else True
        masks.append(mask)
    for at, one in enumerate(masks):
        assert all((one & other).sum() <= 0.9 * max(one.sum(), other.sum()) for other in masks[:at])


def test_pairs_by_pass_do_not_change_the_problems(monkeypatch):
    data = planted(30_000, 6, ({"a": "a1"}, 2.0), ({"b": "b0"}, 0.5))
    before = tu.audit(data, **ROLES)
    expected = [(problem.finding.segment, problem.folded) for problem in before.problems]
    monkeypatch.setattr(module, "PAIRS_PER_PASS", 1)
    monkeypatch.setattr(module, "ROWS_PER_SLICE", 777)
    again = tu.audit(data, **ROLES, threads=2)
    assert [(problem.finding.segment, problem.folded) for problem in again.problems] == expected


def test_overlaps_are_sums_over_common_rows():
    data = planted(3000, 7, ({"a": "a1"}, 4.0))
    data["w"] = np.random.default_rng(7).uniform(0.5, 2, 3000)
    audit = tu.audit(data, **ROLES, weight="w", min_rows=20)
    held = audit.held_rows
    ranks = np.flatnonzero(audit.columns["p_adjusted"] <= 0.05)
    assert len(ranks) > 2
    family = held.families[0]
    keys = tuple(key[held.findings.order[ranks]] for key in family.keys)
    edges = np.array([0.15, 0.3])
    position = np.arange(len(ranks), dtype=np.int32)
    chunk = held.restore().chunks[0]
    sums = module._overlap_pass(0, *keys, edges, position, module.ScorePartition(0, 0, (chunk,)))
    u, e = data["w"] * data["p"] * (1 - data["p"]), data["w"] * (data["y"] - data["p"])
    masks = []
    for rank in ranks:
        mask = np.ones(3000, bool)
        for part in audit.keys.name(rank).split(" & ") if audit.keys.depth[rank] else ():
            column, _, level = part.partition("=")
            mask &= data[column] == level
        masks.append(mask)
    band = np.searchsorted(edges, data["p"], side="right")
    for i, one in enumerate(masks):
        for b in range(3):
            assert sums.residual[i, b] == pytest.approx(e[one & (band == b)].sum())
            for j, other in enumerate(masks):
                both = one & other
                assert sums.common[i, j] == both.sum()
                assert sums.shared[i, j, b] == pytest.approx(u[both & (band == b)].sum())


def test_real_outcomes_and_classes_have_problems():
    random = np.random.default_rng(8)
    g = np.array([*"abcd"])[random.integers(0, 4, 20_000)]
    p = random.uniform(5, 10, 20_000)
    real = tu.audit({"y": p + random.normal(0, 2, 20_000) + (g == "b"), "p": p, "g": g}, **ROLES, task="regression")
    assert names(real)[0] == "g=b"
    probabilities = random.dirichlet((2, 2, 2), 20_000)
    shifted = np.where((g == "c")[:, None], probabilities**2, probabilities)
    chosen = (random.random(20_000)[:, None] > np.cumsum(shifted / shifted.sum(1, keepdims=True), 1)).sum(1)
    data = {"y": np.array([*"xyz"])[chosen], "g": g} | {f"p{at}": probabilities[:, at] for at in range(3)}
    several = tu.audit(data, outcome="y", prediction=["p0", "p1", "p2"], classes=[*"xyz"], by=["g"])
    assert several.problems
    assert all("g=c" in name for name in names(several)[:1])


def test_findings_beyond_the_strongest_are_counted_as_not_examined(monkeypatch):
    data = planted(30_000, 1, ({"a": "a1"}, 2.0))
    before = tu.audit(data, **ROLES)
    assert before.unexamined == 0
    monkeypatch.setattr(module, "MAX_CANDIDATES", 3)
    monkeypatch.setattr("trueup.audits.result.MAX_CANDIDATES", 3)
    few = tu.audit(data, **ROLES)
    assert few.unexamined == few.rejected - 3 > 0
    assert sum(1 + len(problem.folded) for problem in few.problems) == 3
    assert f"the strongest 3 of {few.rejected} findings" in repr(few)


def test_a_class_where_it_is_predicted_and_the_top_label_there_are_one_problem():
    random = np.random.default_rng(5)
    true = random.dirichlet([1, 1, 1], 6000)
    power = np.where(true.argmax(axis=1) == 0, 2, 1)[:, None]  # overconfident where a is predicted
    sure = true**power / (true**power).sum(axis=1, keepdims=True)
    label = (random.random(6000)[:, None] > true.cumsum(axis=1)).sum(axis=1)
    data = {f"p_{name}": sure[:, at] for at, name in enumerate("abc")}
    data |= {"y": np.array([*"abc"])[label], "predicted": np.array([*"abc"])[sure.argmax(axis=1)]}
    audit = tu.audit(data, outcome="y", prediction=["p_a", "p_b", "p_c"], by=["predicted"])
    found = audit.to_frame()
    rows = dict(
        zip(found["segment"].tolist(), zip(found["n"], found["observed"], found["expected"], strict=True), strict=True)
    )
    for name in "abc":
        assert rows[f"class={name} & predicted={name}"] == pytest.approx(rows[f"top label & predicted={name}"])
    listed = [tuple(round(float(value), 9) for value in rows[problem.finding.segment]) for problem in audit.problems]
    assert len(listed) == len(set(listed)) > 0
    (top,) = (problem for problem in audit.problems if problem.finding.segment == "top label & predicted=a")
    assert "class=a & predicted=a" in top.folded
    folded = {name for problem in audit.problems for name in problem.folded}
    assert {problem.finding.segment for problem in audit.problems}.isdisjoint(folded)
    assert len(folded) + len(audit.problems) == audit.rejected


def test_no_material_finding_is_folded_under_a_problem_within_tolerance():
    # By strength alone all rows come first, within tolerance, and explain the material findings.
    audit = tu.audit(planted(8000, 3, *(({"a": f"a{level}"}, 1.3) for level in (1, 2, 3))), **ROLES, tolerance="10%")
    assert not audit.is_material[np.argmax(audit.columns["sigma"])]
    for problem in audit.problems:
        assert problem.finding.state == "material" or all(audit[name].state != "material" for name in problem.folded)
    worst = audit.problems[0].finding
    assert worst.state == "material"
    assert f"largest material problem {worst.segment}:" in audit.verdict
    assert sum(1 + len(problem.folded) for problem in audit.problems) == audit.rejected


def test_the_size_of_a_problem_is_its_range_less_the_range_of_noise():
    columns = {
        "ecce": np.array([0.02, 0.02, 0.02, 0.01]),
        "sigma": np.array([5, 5, 2, np.inf]),
        "weight": np.full(4, 1000.0),
    }
    remaining = np.array([5.0, 4.0, 2.0, np.inf])
    # range_quantile(0.05) is 2.4977: 20 (1 - 2.4977 / 5) = 10.01; 20 (4 - 2.4977) / 5 = 6.01; below the noise; without noise
    assert certain_excess(columns, remaining, np.full(4, 0.05)) == pytest.approx([10.01, 6.01, 0.0, 10.0], abs=0.01)


@pytest.mark.parametrize("tolerance", [None, "10%", "30%"])
def test_problems_are_sorted_by_state_then_by_size(tolerance):
    errors = [({"a": "a1"}, 2.0), ({"b": "b2", "c": "c3"}, 3.0), ({"d": "d0"}, 0.8), ({"c": "c0", "d": "d3"}, 1.5)]
    audit = tu.audit(planted(60_000, 2, *errors), **ROLES, tolerance=tolerance)
    ranks = np.array([problem.rank for problem in audit.problems])
    columns = {name: audit.columns[name][ranks] for name in ("ecce", "sigma", "weight")}
    size = certain_excess(columns, np.array([problem.sigma for problem in audit.problems]), audit.levels[ranks])
    states = [SEVERITY.index(problem.finding.state) for problem in audit.problems]
    assert len(states) > 3
    assert list(zip(states, -size, strict=True)) == sorted(zip(states, -size, strict=True))
    name = "largest material problem" if len(set(states)) > 1 else "largest problem"
    assert f"; {name} {audit.problems[0].finding.segment}: " in audit.verdict


def test_weak_material_findings_are_candidates_before_others(monkeypatch):
    monkeypatch.setattr(module, "MAX_CANDIDATES", 2)
    audit = tu.audit(planted(8000, 3, *(({"a": f"a{level}"}, 1.3) for level in (1, 2, 3))), **ROLES, tolerance="10%")
    assert audit.is_material.sum() == 2
    assert {problem.finding.state for problem in audit.problems} == {"material"}


def test_an_audit_prints_how_many_more_problems_there_are():
    data = planted(
        20_000, 4, *(({"a": f"a{i}", "b": f"b{j}"}, 6.0 if (i + j) % 2 else 0.2) for i in range(4) for j in range(4))
    )
    audit = tu.audit(data, **ROLES)
    more = len(audit.problems) - 8
    assert 0 < more <= 2
    assert f"\n{more} more: audit.problems\n" in repr(audit)
    assert "audit.problems" not in audit._repr_html_()  # it lists ten
