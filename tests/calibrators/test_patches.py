"""HKRR and Multiaccuracy: the published loop, validation on held-out rows, and the list of patches."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trueup as tu
from checks import CLASSES, rows, take
from frames import MAKERS
from trueup.calibrators.patches.estimators import PatchSearch
from trueup.calibrators.patches.map import Patch, PatchList, PatchMap
from trueup.data.bins import fit_binner
from trueup.data.frame import read_like
from trueup.data.simulate import Shift, population
from trueup.data.table import Feature
from trueup.errors import ArgumentError
from trueup.kernels.curves import find_shift

COLUMNS = ["country", "age", "new"]


def expit(x):
    return 1 / (1 + np.exp(-np.asarray(x, float)))


def logit(p):
    p = np.clip(np.asarray(p, float), 1e-6, 1 - 1e-6)
    return np.log(p) - np.log1p(-p)


def published(**own):
    given = {"prediction": "p", "features": COLUMNS, "stopping": None, "min_rows": 20, "alpha": 0.03, "bins": 4}
    return given | own


# ------------------------------------------------------------------ the published algorithm


def masks(data, bins, depth):
    """Return every group of the columns as a mask, in the order of the search."""
    single = []
    missing = np.array([one is None for one in data["country"]])
    single.append(
        [(f"country={one}", data["country"] == one) for one in ("BR", "DE", "US")] + [("country is missing", missing)]
    )
    age = data["age"]
    cut = fit_binner(Feature("age", "numeric"), age, bins, for_new_rows=True)
    single.append([(label, cut.codes(age) == code) for code, label in enumerate(cut.labels)])
    single.append([("new=false", ~data["new"]), ("new=true", data["new"])])
    found = [("all rows", np.ones(len(age), bool)), *(group for column in single for group in column)]
    if depth == 2:
        for a in range(3):
            for b in range(a + 1, 3):
                found += [(f"{x} & {y}", mx & my) for x, mx in single[a] for y, my in single[b]]
    return found


def mass_edges(p, levels):
    ordered = np.sort(p)
    below = np.searchsorted(ordered, np.unique(p), side="left") / len(p)
    edges = [np.unique(p)[below >= k / levels][:1] for k in range(1, levels)]
    edges = np.unique(np.concatenate(edges))
    return edges[edges > p.min()]


def plain_hkrr(data, *, levels, alpha, min_rows, bins, depth, low=-np.inf, high=np.inf, most=10_000):
    """Patch cell after cell with masks and means (the plain version of the search)."""
    p, y = data["p"].astype(float), data["y"].astype(float)
    ends = [-np.inf, *mass_edges(p, levels), np.inf]
    groups, found = masks(data, bins, depth), []
    while len(found) < most:
        best = (0.0, None)
        for name, mask in groups:
            for at in range(len(ends) - 1):
                cell = mask & (p >= ends[at]) & (p < ends[at + 1])
                if mask.sum() < min_rows or cell.sum() < min_rows:
                    continue
                bias = np.mean((y - p)[cell])
                drop = cell.sum() * bias**2
                if abs(bias) > alpha and drop > best[0] * (1 + 1e-9):
                    best = (drop, (name, ends[at], ends[at + 1], bias, cell))
        if best[1] is None:
            break
        name, start, stop, bias, cell = best[1]
        found.append((name, start, stop, bias, int(cell.sum())))
        p = np.where(cell, np.clip(p + bias, low, high), p)
    return p, found


@pytest.mark.parametrize("depth", [1, 2])
def test_published_algorithm_equals_a_plain_loop(depth):
    data = rows(n=600, seed=depth)
    fix = tu.HKRR(**published(levels=4, depth=depth)).fit(data, data["y"])
    p, found = plain_hkrr(data, levels=4, alpha=0.03, min_rows=20, bins=4, depth=depth, low=0.0, high=1.0)
    assert [one.group for one in fix.patches_.patches] == [name for name, *_ in found]
    assert [(one.low, one.high, one.rows) for one in fix.patches_.patches] == [(a, b, n) for _, a, b, _, n in found]
    np.testing.assert_allclose([one.shift for one in fix.patches_.patches], [bias for *_, bias, _ in found], atol=1e-12)
    np.testing.assert_allclose(fix.predict(data), p, atol=1e-12)
    assert len(found) > 10


def test_published_algorithm_equals_a_plain_loop_for_real_outcomes():
    data = rows("regression", n=600)
    fix = tu.HKRR(**published(levels=4, task="regression")).fit(data, data["y"])
    p, found = plain_hkrr(data, levels=4, alpha=0.03 * np.std(data["y"]), min_rows=20, bins=4, depth=1)
    assert [one.group for one in fix.patches_.patches] == [name for name, *_ in found]
    np.testing.assert_allclose(fix.predict(data), p, atol=1e-9)


def test_multiaccuracy_without_stopping_equals_a_plain_loop_on_logits():
    from scipy.optimize import brentq

    data = rows(n=600)
    fix = tu.Multiaccuracy(**published()).fit(data, data["y"])
    F, y, found = logit(data["p"]), data["y"], []
    while True:
        biased = [(mask.sum() * np.mean((y - expit(F))[mask]) ** 2, name, mask) for name, mask in masks(data, 4, 1)
                  if mask.sum() >= 20 and abs(np.mean((y - expit(F))[mask])) > 0.03]  # fmt: skip
        if not biased:
            break
        _, name, mask = max(biased, key=lambda item: item[0])
        shift = brentq(lambda x, f, y: np.sum(y - expit(f + x)), -30, 30, (F[mask], y[mask]), xtol=1e-14)
        F = np.where(mask, F + shift, F)
        found.append((name, shift))
    assert [one.group for one in fix.patches_.patches] == [name for name, _ in found]
    np.testing.assert_allclose([one.shift for one in fix.patches_.patches], [shift for _, shift in found], atol=1e-9)
    np.testing.assert_allclose(fix.predict(data), expit(F), atol=1e-9)
    assert len(found) >= 3


@pytest.mark.parametrize("make", [tu.HKRR, tu.Multiaccuracy])
def test_published_algorithm_leaves_every_cell_within_alpha(make):
    data = rows(n=900, seed=4)
    fix = make(**published(depth=2, alpha=0.02)).fit(data, data["y"])
    p = fix.predict(data)
    ends = [-np.inf, *(mass_edges(data["p"], 10) if make is tu.HKRR else ()), np.inf]
    checked = 0
    for _, mask in masks(data, 4, 2):
        for low, high in itertools.pairwise(ends):
            cell = mask & (p >= low) & (p < high)
            if mask.sum() >= 20 and cell.sum() >= 20:
                checked += 1
                assert abs(np.mean((data["y"] - p)[cell])) <= 0.02 + 1e-12
    assert checked > 20
    assert "no cell of at least 20 rows has an error above 0.02; no rows were held out" in fix.history_.reason


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_every_patch_lowers_squared_error(task):
    data = rows(task)
    fix = tu.HKRR(**published(depth=2, rounds=60, task=task)).fit(data, data["y"])
    whole = fix.model_.map
    table = read_like(data, fix.model_.schema)
    columns = [table.columns[name] for name in COLUMNS]
    errors = []
    for many in range(whole.steps + 1):
        some = PatchMap(whole.link, whole.levels, whole.edges, whole.patches[:many], whole.clip)
        errors.append(np.mean((data["y"] - some.apply(columns, table.prediction)) ** 2))
    assert whole.steps > 20
    assert (np.diff(errors) < 0).all()


def test_rounds_limit_the_number_of_patches():
    data = rows()
    fix = tu.HKRR(**published(rounds=3)).fit(data, data["y"])
    assert len(fix.patches_) == fix.history_.chosen == 3
    assert (
        fix.history_.reason
        == "3 patches of 2 groups; stopped at the maximum number of rounds; no rows were held out to evaluate them"
    )
    data = population(6000, 1, levels=(4, 4), shifts=[Shift({"c0": "c0_1"}, 1.5), Shift({"c1": "c1_2"}, -1.5)])
    fix = tu.Multiaccuracy("prediction", ["c0", "c1"], rounds=1).fit(data, data["outcome"])
    assert fix.history_.chosen == 1
    assert fix.history_.reason.endswith("stopped at the maximum number of rounds")


# ------------------------------------------------------------------ planted errors


SHIFTS = [Shift({"c0": "c0_1"}, 1.0), Shift({"c1": "c1_2"}, -1.0)]


@pytest.mark.parametrize("make", [tu.HKRR, tu.Multiaccuracy])
def test_planted_shifts_are_found_named_and_removed(make):
    data, fresh = (population(n, seed, levels=(4, 4), numeric=1, shifts=SHIFTS) for n, seed in ((20_000, 1), (50_000, 2)))
    fix = make("prediction", ["c0", "c1", "x0"]).fit(data, data["outcome"])
    assert {one.group for one in fix.patches_.patches} >= {"c0=c0_1", "c1=c1_2"}
    before, after = (np.mean((fresh["truth"] - p) ** 2) for p in (fresh["prediction"], fix.predict(fresh)))
    assert after < 0.15 * before
    for name, level in (("c0", "c0_1"), ("c1", "c1_2")):
        inside = fresh[name] == level
        off = np.mean((fresh["outcome"] - fix.predict(fresh))[inside])
        assert abs(off) < 0.02 < abs(np.mean((fresh["outcome"] - fresh["prediction"])[inside]))


def test_depth_two_finds_shifts_of_pairs():
    planted = [Shift({"c0": "c0_1", "c1": "c1_2"}, 1.5)]
    data = population(20_000, 3, levels=(4, 4), shifts=planted)
    for make in (tu.HKRR, tu.Multiaccuracy):
        found = make("prediction", ["c0", "c1"], depth=2).fit(data, data["outcome"]).patches_
        assert found[0].group == "c0=c0_1 & c1=c1_2"
        assert found[0].conditions == ((0, 1), (1, 2))
        assert len(found) <= 3


def banded(n, seed):
    """Make scores that are calibrated except for one group at high scores."""
    random = np.random.default_rng([seed, 5])
    p = random.uniform(0.05, 0.95, n)
    country = np.array(["BR", "DE", "US"], object)[random.integers(0, 3, n)]
    truth = np.where((country == "BR") & (p >= 0.7), p - 0.25, p)
    return {"p": p, "country": country, "y": (random.random(n) < truth).astype(int), "truth": truth}


def test_only_hkrr_corrects_a_group_at_some_scores():
    data, fresh = banded(12_000, 0), banded(40_000, 1)
    fix = tu.HKRR("p", ["country"]).fit(data, data["y"])
    first = fix.patches_[0]
    assert first.group == "country=BR"
    assert 0.6 <= first.low <= 0.75
    assert np.isinf(first.high)
    assert first.observed == pytest.approx(first.before - 0.25, abs=0.05)
    error = {name: np.mean((fresh["truth"] - found.predict(fresh)) ** 2) for name, found in
             (("cells", fix), ("whole", tu.Multiaccuracy("p", ["country"]).fit(data, data["y"])))}  # fmt: skip
    assert error["cells"] < 0.2 * error["whole"]


def test_calibrated_scores_are_left_unchanged():
    # The probability of a false patch is at most 5% per fit: more than 6 of 40 have a probability of 0.3%.
    false = {"HKRR": 0, "Multiaccuracy": 0}
    for seed in range(20):
        for prevalence in (0.3, 0.03):
            data = population(2000, seed, levels=(4, 6), numeric=1, prevalence=prevalence)
            for name in false:
                fix = getattr(tu, name)("prediction", ["c0", "c1", "x0"]).fit(data, data["outcome"])
                false[name] += fix.history_.chosen > 0
                if not fix.history_.chosen:
                    assert fix.predict(data).tobytes() == data["prediction"].tobytes()
                    assert "scores are left unchanged" in fix.history_.reason
    assert max(false.values()) <= 6


def test_small_data_does_not_get_worse():
    changes = []
    for seed in range(12):
        data, fresh = (
            population(n, at, levels=(4, 4), numeric=1, shifts=SHIFTS[:1]) for n, at in ((800, seed), (20_000, 99))
        )
        fix = tu.HKRR("prediction", ["c0", "c1", "x0"]).fit(data, data["outcome"])
        p = np.clip(fix.predict(fresh), 1e-6, 1 - 1e-6)
        loss = -np.mean(fresh["truth"] * np.log(p) + (1 - fresh["truth"]) * np.log1p(-p))
        q = fresh["prediction"]
        changes.append(loss + np.mean(fresh["truth"] * np.log(q) + (1 - fresh["truth"]) * np.log1p(-q)))
    assert np.mean(changes) < 0.001


def test_absent_rare_events_are_no_evidence():
    # 80 rows of 2% without an event: their gain has no variance, but a fifth of such groups look like that.
    n = 4000
    country = np.where(np.arange(n) < 80, "quiet", "usual").astype(object)
    y = np.zeros(n)
    y[80::49] = 1
    data = {"p": np.full(n, 0.02) + 1e-9 * np.arange(n), "country": country}
    for make in (tu.HKRR, tu.Multiaccuracy):
        assert make("p", ["country"]).fit(data, y).history_.chosen == 0


def test_absent_tails_of_skewed_outcomes_are_no_evidence():
    # Residuals are -1 for 19 rows of 20, and 19 for one: 60 rows without such a one are not surprising.
    n = 2060
    p = np.random.default_rng(0).normal(size=n)
    rest = np.where(np.arange(n) % 20 == 7, 19.0, -1.0)
    rest[2000:] = -1.0
    country = np.where(np.arange(n) < 2000, "usual", "quiet").astype(object)
    for make in (tu.HKRR, tu.Multiaccuracy):
        fix = make("p", ["country"], task="regression").fit({"p": p, "country": country}, p + rest + 0.01 * np.sin(p))
        assert fix.history_.chosen == 0


def test_one_score_range_is_multiaccuracy():
    data = rows(n=900)
    one, whole = tu.HKRR("p", COLUMNS, levels=1).fit(data, data["y"]), tu.Multiaccuracy("p", COLUMNS).fit(data, data["y"])
    assert one.patches_ == whole.patches_
    assert one.history_ == whole.history_
    assert len(one.patches_) > 0


def test_search_stops_after_many_rejected_proposals(monkeypatch):
    data = population(4000, 3, levels=(6, 6), numeric=2)
    names = ["c0", "c1", "x0", "x1"]
    evaluated = []
    monkeypatch.setattr(PatchSearch, "_validate", lambda self, cell: evaluated.append(cell) or validate(self, cell))
    monkeypatch.setattr("trueup.calibrators.patches.estimators.MAX_REJECTED", 3)
    for patience in (1, 2):
        evaluated.clear()
        fix = tu.HKRR("prediction", names, depth=2, stopping=tu.CrossValidation(patience=patience))
        fix.fit(data, data["outcome"])
        assert fix.history_.chosen == 0
        assert len(evaluated) == len(set(evaluated)) == 3 * patience  # no cell twice while nothing changes


validate = PatchSearch._validate


def test_given_validation_rows_decide():
    data, other = (population(5000, seed, levels=(4,), shifts=SHIFTS[:1]) for seed in (7, 8))
    calibrated = (np.random.default_rng(1).random(5000) < other["prediction"]).astype(int)
    for outcome, kept in ((other["outcome"], True), (calibrated, False)):
        rule = tu.Validation({"prediction": other["prediction"], "c0": other["c0"]}, outcome)
        fix = tu.Multiaccuracy("prediction", ["c0"], stopping=rule).fit(data, data["outcome"])
        assert (fix.history_.chosen > 0) is kept
        assert fix.history_.evaluated_on == "given rows"


def test_holdout_estimates_patches_on_the_other_rows():
    data = population(6000, 2, levels=(3,), shifts=[Shift({"c0": "c0_1"}, 1.0)])
    fix = tu.Multiaccuracy("prediction", ["c0"], stopping=tu.Holdout(0.5)).fit(data, data["outcome"])
    found = fix.patches_[0]
    inside = data["c0"] == "c0_1"
    assert found.group == "c0=c0_1"
    assert 0.4 * inside.sum() < found.rows < 0.6 * inside.sum()
    assert fix.history_.evaluated_on == "held-out rows"


def test_history_has_every_patch_and_the_last_rejected_one():
    data = population(20_000, 1, levels=(4, 4), numeric=1, shifts=SHIFTS)
    history = tu.Multiaccuracy("prediction", ["c0", "c1", "x0"]).fit(data, data["outcome"]).history_
    assert history.chosen >= 2
    assert [one.kept for one in history.rounds[: history.chosen + 1]] == [True] * (history.chosen + 1)
    assert all(not one.kept for one in history.rounds[history.chosen + 1 :])
    losses = [one.loss for one in history.rounds[: history.chosen + 1]]
    np.testing.assert_allclose(-np.diff(losses), [one.gain for one in history.rounds[1 : history.chosen + 1]], atol=1e-12)
    assert (np.diff(losses) < 0).all()
    assert history.measure == "log loss"
    base = -np.mean(np.where(data["outcome"] == 1, np.log(data["prediction"]), np.log1p(-data["prediction"])))
    assert history.loss_before == pytest.approx(base, abs=1e-12)


def test_soft_labels_are_accepted():
    data = rows(n=500)
    soft = np.where(data["country"] == "BR", expit(logit(data["p"]) + 1.0), data["p"])
    fix = tu.Multiaccuracy("p", ["country"]).fit(data, soft)
    assert fix.patches_[0].group == "country=BR"
    assert fix.patches_[0].shift == pytest.approx(1.0, abs=0.02)


# ------------------------------------------------------------------ cells and groups


def test_spacing_is_by_rows_or_by_width():
    p = np.concatenate([np.full(30, 0.01), np.linspace(0.02, 0.05, 69), [0.9]])
    y = np.tile([0, 1], 50)
    one = {"stopping": None, "min_rows": 1, "alpha": 0.0, "levels": 4}
    by_mass = tu.HKRR("p", [], **one, rounds=500).fit({"p": p}, y).patches_
    edges = mass_edges(p, 4)
    assert {patch.low for patch in by_mass.patches} <= {-np.inf, *edges}
    assert np.array_equal(np.bincount(np.searchsorted(edges, p, side="right")), [30, 20, 25, 25])
    wide = tu.HKRR("p", [], **one, spacing="equal", rounds=1).fit({"p": p}, y).patches_
    assert (wide[0].low, wide[0].high, wide[0].rows) == (-np.inf, 0.25, 99)
    real = tu.HKRR("p", [], **one, spacing="equal", task="regression", rounds=1).fit({"p": 10 * p}, y).patches_
    assert (real[0].low, real[0].high, real[0].rows) == (pytest.approx(0.1 + 8.9 * 3 / 4), np.inf, 1)


def test_small_cells_are_not_corrected():
    data = rows(n=300)
    for least in (20, 60):
        fix = tu.HKRR(**published(min_rows=least, alpha=0.0, rounds=200, levels=3)).fit(data, data["y"])
        assert min(one.rows for one in fix.patches_.patches) >= least
    none = tu.HKRR(**published(min_rows=301)).fit(data, data["y"])
    assert len(none.patches_) == 0
    assert none.history_.reason.startswith("no patch; no cell of at least 301 rows")


def test_missing_values_dates_and_indicators_are_groups():
    data = rows(n=700)
    fix = tu.Multiaccuracy(**published(features=["age", "day", "new"], alpha=0.0, rounds=60)).fit(data, data["y"])
    groups = {one.group for one in fix.patches_.patches}
    assert {"age is missing", "new=true"} <= groups
    assert any(group.startswith("day") and "2024-" in group for group in groups)
    flag = data["new"].astype(int)
    as_number = tu.Multiaccuracy("p", ["flag"], stopping=None, alpha=0.0).fit({"p": data["p"], "flag": flag}, data["y"])
    assert {one.group for one in as_number.patches_.patches} <= {"all rows", "flag=0", "flag=1"}


@pytest.mark.filterwarnings("ignore:[0-9,]+ rows share all features:trueup.errors.ClusterWarning")
@pytest.mark.parametrize("task", ["binary", "regression"])
@pytest.mark.parametrize("make", [tu.HKRR, tu.Multiaccuracy])
def test_integer_weights_count_rows(make, task):
    data = rows(task, n=300)
    counts = np.random.default_rng(0).integers(1, 5, 300)
    fix, copies = make(**published(depth=2, task=task, rounds=50)), make(**published(depth=2, task=task, rounds=50))
    many = take(data, np.repeat(np.arange(300), counts))
    a = fix.fit(data, data["y"], sample_weight=counts).predict(data)
    assert a.tobytes() == copies.fit(many, many["y"]).predict(data).tobytes()
    assert [one.shift for one in fix.patches_.patches] == [one.shift for one in copies.patches_.patches]


def test_order_of_weighted_rows_does_not_matter():
    data = rows(n=900)
    weight = np.random.default_rng(0).uniform(0.2, 3, 900)
    order = np.random.default_rng(1).permutation(900)
    for make in (tu.HKRR, tu.Multiaccuracy):
        a = make("p", COLUMNS, min_rows=20).fit(data, data["y"], sample_weight=weight)
        b = make("p", COLUMNS, min_rows=20).fit(take(data, order), data["y"][order], sample_weight=weight[order])
        assert a.patches_ == b.patches_
        assert a.history_ == b.history_
        assert len(a.patches_) > 0


# ------------------------------------------------------------------ the list of patches


LISTED = PatchList(
    (
        Patch("country=BR & device=tv", ((0, 1), (1, 2)), 0.1, 0.25, 0.0612, 1234, 0.1533, 0.2145),
        Patch("all rows", (), -np.inf, 0.1, -0.01, 20_000, 0.06, 0.05),
    ),
    "prediction",
)


def test_patch_list_repr():
    assert repr(LISTED) == (
        "Patches: 2 in order; each applies to the scores after those above it\n"
        "     group                   score          rows  predicted  observed  prediction shift\n"
        "  1  country=BR & device=tv  0.1 to 0.25   1,234     0.1533    0.2145           +0.0612\n"
        "  2  all rows                below 0.1    20,000       0.06      0.05             -0.01"
    )
    assert repr(PatchList((), "logit")) == "Patches: none; scores are left unchanged"
    long = PatchList((Patch("x" * 200, (), -np.inf, np.inf, 1.0, 9, 0.1, 0.2),) * 50, "logit")
    assert max(map(len, repr(long).splitlines())) <= 100
    assert repr(long).endswith("and 30 more: to_frame() returns all of them")
    assert "score" not in repr(long).splitlines()[1]
    assert repr(PatchList(LISTED.patches[:1], "logit")).startswith("Patches: one\n")


def test_patch_list_exports(frame_maker):
    like = frame_maker({"a": [1]})
    found = LISTED.to_frame(like)
    assert type(found) is type(like)
    columns = LISTED.to_frame()
    assert list(columns) == ["patch", "group", "low", "high", "rows", "before", "observed", "shift"]
    assert columns["group"].tolist() == ["country=BR & device=tv", "all rows"]
    plain = LISTED.to_dict()
    assert plain["scale"] == "prediction"
    assert (plain["patches"][1]["low"], plain["patches"][1]["high"]) == (None, 0.1)
    json.dumps(plain, allow_nan=False)


@pytest.fixture(params=sorted(MAKERS))
def frame_maker(request):
    return MAKERS[request.param]


@pytest.mark.parametrize("own", [{}, {"stopping": None, "alpha": 0.02, "depth": 2}, {"task": "regression"}])
@pytest.mark.parametrize("make", [tu.HKRR, tu.Multiaccuracy])
def test_contributions_of_a_row_add_up(make, own):
    data = rows("regression" if own.get("task") else "binary", n=900)
    if own.get("stopping", 1) is None:
        data["p"] = np.where(data["p"] < 0.1, 0.01, data["p"])
    fix = make("p", COLUMNS, min_rows=20, **own).fit(data, data["y"])
    after, kept = fix.predict(data), 0
    for at in range(150):
        found = fix.explain({name: data[name][at] for name in data})
        assert found.after == after[at]
        assert sum(part.change for part in found.contributions) == pytest.approx(found.link_change, abs=1e-9)
        moved = logit(after[at]) - logit(data["p"][at]) if found.scale == "logit" else after[at] - data["p"][at]
        assert found.link_change == pytest.approx(moved, abs=1e-6)
        kept += any(part.condition == "clipping to 0 and 1" for part in found.contributions)
        assert all("(patch " in part.condition or part.condition == "clipping to 0 and 1" for part in found.contributions)
    assert (kept > 0) == (make is tu.HKRR and "stopping" in own)


def test_patches_need_a_fit():
    assert not hasattr(tu.HKRR(), "patches_")


def test_description_counts_patches_and_groups():
    data = rows()
    fix = tu.HKRR(**published(rounds=1)).fit(data, data["y"])
    assert fix.model_.info().map == "1 patch of 1 group"


# ------------------------------------------------------------------ errors


def test_several_classes_are_rejected():
    data = rows("multiclass")
    for make in (tu.HKRR, tu.Multiaccuracy):
        with pytest.raises(ArgumentError, match="corrects one prediction column; got 3, one per class") as caught:
            make([f"p_{name}" for name in CLASSES], COLUMNS).fit(data, data["y"])
        assert "MCGrad" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"depth": 3}, "depth must be an integer from 1 to 2; got 3"),
        ({"levels": 0}, "levels must be an integer from 1 to 1,000; got 0"),
        ({"alpha": -1}, "alpha must be a number at least 0; got -1"),
        ({"spacing": "even"}, "spacing must be one of 'mass', 'equal'; got 'even'"),
        ({"stopping": 5}, "stopping must be a CrossValidation, a Holdout, a Validation or None; got 5"),
    ],
)
def test_invalid_parameters_are_rejected(given, message):
    data = rows(n=60)
    with pytest.raises(ArgumentError, match=message):
        tu.HKRR("p", COLUMNS, **given).fit(data, data["y"])


# ------------------------------------------------------------------ kernels


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=30), st.floats(1e-6, 1 - 1e-6), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_logit_shift_reaches_the_target_mean(F, target, seed):
    F, weight = np.array(F), np.random.default_rng(seed).uniform(0.1, 5, len(F))
    shift = find_shift(F, weight, target)
    found = np.average(expit(F + shift), weights=weight)
    assert found == pytest.approx(target, rel=1e-9)


FINITE = st.floats(0, 1)


@st.composite
def patch_lists(draw):
    edges = np.unique(draw(st.lists(st.floats(-3, 3), max_size=4)))
    conditions = [(0, st.integers(0, 3)), (1, st.integers(0, len(edges) + 1))]
    patches = []
    for _ in range(draw(st.integers(1, 8))):
        used = draw(st.lists(st.sampled_from(conditions), max_size=2, unique_by=lambda one: one[0]))
        low, high = sorted(draw(st.tuples(FINITE, FINITE)))
        low, high = draw(st.sampled_from([(low, high + 0.1), (-np.inf, high + 0.1), (low, np.inf), (-np.inf, np.inf)]))
        own = tuple((at, draw(codes)) for at, codes in used)
        patches.append(Patch("", own, low, high, draw(st.floats(-0.6, 0.6)), 1, 0.0, 0.0))
    return edges, tuple(patches)


@settings(max_examples=80, deadline=None)
@given(patch_lists(), st.integers(0, 2**32 - 1))
def test_kernel_applies_patches_in_order(made, seed):
    edges, patches = made
    random = np.random.default_rng(seed)
    n = 40
    codes = random.integers(-1, 5, n)
    numbers = np.where(random.random(n) < 0.2, np.nan, np.concatenate([random.uniform(-3, 3, n - len(edges)), edges]))
    p = np.concatenate([random.random(n - 2), [0.0, 1.0]])
    found = PatchMap("identity", (3, -1), (np.empty(0), edges), patches, (0.0, 1.0)).apply([codes, numbers], p)
    for i in range(n):
        own = {0: codes[i] if 0 <= codes[i] < 3 else 3,
               1: len(edges) + 1 if np.isnan(numbers[i]) else int(np.sum(edges <= numbers[i]))}  # fmt: skip
        value = p[i]
        for one in patches:
            if one.low <= value < one.high and all(own[at] == code for at, code in one.conditions):
                value = min(max(value + one.shift, 0.0), 1.0)
        assert found[i] == value
