"""Explanations are true: corrections recomputed by hand, contributions that add up, conditions that hold."""

from __future__ import annotations

import datetime as dt
import re
import tracemalloc

import numpy as np
import pytest

import trueup as tu
from checks import CLASSES, FEATURES, rows, take
from trueup.calibrators.explain import Explanation, find_corrections
from trueup.calibrators.mcgrad.cascade import RESCALING
from trueup.calibrators.row_explanation import DATES, NUMBERS, SCORES, interval_text
from trueup.data.frame import read
from trueup.data.simulate import Shift, population
from trueup.errors import ArgumentError

PREDICTION = {"binary": "p", "regression": "p", "multiclass": ["p_cat", "p_dog", "p_owl"]}


def mcgrad(task="binary", **own):
    kind = {"task": "regression"} if task == "regression" else {}
    return tu.MCGrad(**{"prediction": PREDICTION[task], "features": FEATURES, "threads": 1} | kind | own)


# ------------------------------------------------------------------ corrections


@pytest.mark.parametrize("planted", [{"c0": "c0_1"}, {"c1": "c1_2"}, {"c0": "c0_0", "c1": "c1_1"}], ids=str)
def test_the_first_correction_is_the_planted_segment(planted):
    data = population(3000, 1, levels=(4, 3), shifts=[Shift(planted, 2.2)])
    fix = tu.MCGrad("prediction", ["c0", "c1"]).fit(data, data["outcome"])
    first = fix.explain().corrections[0]
    inside = np.logical_and.reduce([data[name] == level for name, level in planted.items()])
    assert first.segment == " & ".join(f"{name}={level}" for name, level in planted.items())
    assert first.after > first.before
    band = inside & (data["prediction"] >= first.low) & (data["prediction"] <= first.high)
    assert (first.rows, first.share) == (band.sum(), band.mean())
    np.testing.assert_allclose(
        (first.before, first.after, first.observed),
        (data["prediction"][band].mean(), fix.predict(data)[band].mean(), data["outcome"][band].mean()),
        rtol=1e-12,
    )


def test_corrections_are_weighted_and_sorted():
    data = population(3000, 2, levels=(4, 3), numeric=1, shifts=[Shift({"c0": "c0_0"}, -1.5), Shift({"x0": (1, 9)}, 1.5)])
    weight = np.random.default_rng(0).uniform(0.2, 3, 3000)
    fix = tu.MCGrad("prediction", ["c0", "c1", "x0"]).fit(data, data["outcome"], sample_weight=weight)
    found, after = fix.explain(), fix.predict(data)
    sizes = [one.share * abs(one.after - one.before) for one in found.corrections]
    assert sizes == sorted(sizes, reverse=True)
    assert found.mean_change == pytest.approx(np.average(np.abs(after - data["prediction"]), weights=weight), rel=1e-12)
    assert 0.3 < found.explained_share <= 1
    named = next(one for one in found.corrections if one.segment == "c0=c0_0")
    inside = (data["c0"] == "c0_0") & (data["prediction"] >= named.low) & (data["prediction"] <= named.high)
    w = weight[inside]
    assert named.share == pytest.approx(w.sum() / weight.sum())
    np.testing.assert_allclose(
        (named.before, named.after, named.observed),
        [np.average(x[inside], weights=w) for x in (data["prediction"], after, data["outcome"])],
    )


def test_corrections_of_classes_name_the_class():
    data = rows("multiclass", 1500)
    fix = mcgrad("multiclass", repeats=1).fit(data, data["y"])
    after = fix.predict(data)
    for one in fix.explain().corrections:
        name, *rest = one.segment.split(" & ")
        at = CLASSES.index(name.removeprefix("class="))
        p = data[PREDICTION["multiclass"][at]]
        inside = (p >= one.low) & (p <= one.high)
        for text in rest:
            inside &= rows_of_label(text, data)
        assert inside.sum() == one.rows
        assert one.before == pytest.approx(p[inside].mean(), rel=1e-9)
        assert one.after == pytest.approx(after[inside, at].mean(), rel=1e-9)
        assert one.observed == pytest.approx((data["y"][inside] == CLASSES[at]).mean(), rel=1e-9)


def rows_of_label(text, data):
    """Return the rows that a segment label of an audit describes."""
    if text.endswith(" is missing"):
        column = data[text.removesuffix(" is missing")]
        return np.array([value is None or value != value for value in column.tolist()])
    name = re.match(r"\w+", text)[0]
    rest = text[len(name) :]
    if name == "new":
        return data["new"] == (rest == "=true")
    if name == "country":
        return data["country"] == rest[1:]
    if name == "day":
        months = data["day"].astype("datetime64[M]")
        if "-Q" not in rest:
            return months == np.datetime64(rest[1:], "M")
        year, quarter = rest[1:].split("-Q")
        return (months.astype(int) // 12 + 1970 == int(year)) & (months.astype(int) % 12 // 3 + 1 == int(quarter))
    x = data[name]
    if bounds := re.fullmatch(r"=\[(.*), (.*)\)", rest):
        return (x >= float(bounds[1])) & (x < float(bounds[2]))
    return x < float(rest[1:]) if rest[0] == "<" else x >= float(rest[2:])


def test_absent_pairs_of_levels_use_no_memory():
    random = np.random.default_rng(0)
    n, levels = 4000, 2000
    a, b = (np.array([f"{name}{at}" for at in random.integers(0, levels, n)], object) for name in "ab")
    p = random.uniform(0.2, 0.8, n)
    data = {"a": a, "b": b, "p": p, "y": (random.random(n) < p).astype(int)}
    fix = tu.MCGrad("p", ["a", "b"], stopping=None, trees=20, depth=2).fit(data, data["y"])
    table = read(data, outcome="y", prediction="p", features=["a", "b"])
    tracemalloc.start()
    find_corrections(table, fix.model_.map.feature_sets(), p, fix.predict(data), 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # all 4 million pairs by six bands would be 192 MB for one count of them


def test_raised_and_lowered_scores_are_told_apart():
    shifts = [Shift({"c0": "c0_0"}, 1.5), Shift({"c0": "c0_1"}, -1.5)]
    data = population(4000, 1, levels=(4,), shifts=shifts)
    weight = np.random.default_rng(0).uniform(0.2, 3, 4000)
    fix = tu.MCGrad("prediction", ["c0"]).fit(data, data["outcome"], sample_weight=weight)
    found, change = fix.explain(), fix.predict(data) - data["prediction"]
    assert found.raised[0].segment == "c0=c0_0"
    assert found.lowered[0].segment == "c0=c0_1"
    assert {*found.raised} | {*found.lowered} == {*found.corrections}
    assert all(one.change > 0 for one in found.raised)
    assert all(one.change <= 0 for one in found.lowered)
    assert (found.rows_raised, found.rows_lowered) == ((change > 0).sum(), (change < 0).sum())
    assert found.mean_raise == pytest.approx(np.average(change[change > 0], weights=weight[change > 0]))
    assert found.mean_lowering == pytest.approx(np.average(-change[change < 0], weights=weight[change < 0]))
    lines = repr(found).splitlines()
    assert lines[0] == (
        f"Explanation: {found.rows_raised:,} scores raised by {100 * found.mean_raise:.2f} points on average, "
        f"{found.rows_lowered:,} lowered by {100 * found.mean_lowering:.2f} points (4,000 rows)"
    )
    up, down = lines.index("scores raised:"), lines.index("scores lowered:")
    assert f"{100 * found.raised[0].change:+.2f}" in lines[up + 2]
    assert f"{100 * found.lowered[0].change:+.2f}" in lines[down + 2]
    assert len({len(line) for line in lines[up + 1 : down] + lines[down + 1 :]}) == 1  # columns are aligned
    assert found._repr_html_().count("<table") == 3


def test_changes_of_amounts_are_in_their_own_unit():
    data = rows("regression", 1500)
    fix = mcgrad("regression", repeats=1).fit(data, data["y"])
    found = fix.explain()
    assert found.unit == "change"
    assert "points" not in repr(found) + repr(fix.explain({"p": 3.0}))


def test_explanations_of_earlier_files_are_restored():
    stored = {"corrections": [], "rows": 5, "moved": 0.25, "accounted": 0.5}
    found = Explanation.from_dict(stored, "change")
    assert repr(found) == "Explanation: scores changed by 0.250 on average over 5 rows"
    assert repr(Explanation.from_dict(stored)) == "Explanation: scores changed by 25.00 points on average over 5 rows"


def test_explanation_repr_and_exports(frame):
    data = population(2000, 1, levels=(4,), shifts=[Shift({"c0": "c0_0"}, 1.5)])
    found = tu.MCGrad("prediction", ["c0"], repeats=1).fit(data, data["outcome"]).explain()
    table = found.to_frame(like=frame({"a": [1]}))
    assert list(table["segment"].to_numpy()) == [one.segment for one in found.corrections]
    assert type(found).from_dict(found.to_dict()) == found
    assert "c0=c0_0" in repr(found)
    np.testing.assert_array_equal(found.to_frame()["change"], found.to_frame()["after"] - found.to_frame()["before"])
    empty = type(found)((), 5, 0.0, 0.0)
    assert repr(empty) == "Explanation: nothing was corrected"
    assert len(empty.to_frame()["segment"]) == 0


# ------------------------------------------------------------------ single rows


def logit(p):
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return np.log(p) - np.log1p(-p)


FITS = {
    "one round": {"rounds": 1},
    "fixed rounds": {"stopping": None, "rounds": 3, "trees": 10},
    "folds, two rounds": {"stopping": tu.CrossValidation(3), "rounds": 2, "trees": 4, "learning_rate": 0.2, "depth": 2},
    "deep": {"depth": None, "leaves": 9, "stopping": None, "rounds": 2, "trees": 15},
}


@pytest.fixture(scope="module", params=[(task, name) for task in sorted(PREDICTION) for name in FITS], ids=str)
def fitted(request):
    task, name = request.param
    data = rows(task, 800)
    fix = mcgrad(task, **FITS[name]).fit(data, data["y"])
    trees = [one for one in fix.model_.map.rounds if not one.is_line]
    assert len(trees) == {"one round": 1, "fixed rounds": 3}.get(name, 2)
    return task, fix, take(rows(task, 60, seed=3), slice(60))


def _rows(data):
    return [{name: column[i] for name, column in data.items()} for i in range(len(data["y"]))]


def test_contributions_add_up_to_the_change(fitted):
    task, fix, data = fitted
    for row in _rows(data):
        found = fix.explain(row)
        after = fix.predict_one(row)
        if task == "multiclass":
            assert found.after == tuple(after.tolist())
            raw = np.log(np.maximum(found.before, 1e-6)) + found.link_change
            np.testing.assert_allclose(np.exp(raw) / np.exp(raw).sum(), after, atol=1e-12)
            sums = [sum(part.change for part in found.contributions if part.output == name) for name in CLASSES]
            np.testing.assert_allclose(sums, found.link_change, atol=1e-12)
            continue
        assert (found.before, found.after) == (row["p"], after)
        scale = 1.0 if task == "binary" else max(1.0, abs(after))
        change = logit(after) - logit(row["p"]) if task == "binary" else after - row["p"]
        assert sum(part.change for part in found.contributions) == pytest.approx(found.link_change, abs=1e-12 * scale)
        assert found.link_change == pytest.approx(change, abs=1e-12 * scale)
        assert sum(part.condition == RESCALING for part in found.contributions) == 1
        sizes = [abs(part.change) for part in found.contributions]
        assert sizes == sorted(sizes, reverse=True)


def test_every_condition_holds_for_its_row(fitted):
    _, fix, data = fitted
    cascade = fix.model_.map
    seen = set()
    for row in _rows(data)[:25]:
        values, prediction = fix.model_._encode(row)
        after = [dict(zip(fix.model_.schema.prediction, prediction, strict=True))]
        for number in range(1, len(cascade.rounds)):
            first = type(cascade)(cascade.link, cascade.levels, cascade.outputs, cascade.rounds[:number])
            after.append(dict(zip(after[0], first.apply_one(values, prediction), strict=True)))
        for part in fix.explain(row).contributions:
            if part.condition in (RESCALING, "every row"):
                continue
            for text in part.condition.split(" & "):
                seen.add(re.sub(r"\d", "#", text))
                assert _holds(text, row, after), (text, row)
    later = [forest for one in cascade.rounds[1:] for forest in one.forests]
    reads_a_score = any((forest.feature >= len(cascade.levels)).any() for forest in later)
    assert any("after round" in text for text in seen) == reads_a_score
    assert any(text.startswith("country=") for text in seen)
    assert any("day" in text for text in seen)


def _holds(text, row, after):
    if text.endswith(" is missing"):
        value = row[text.removesuffix(" is missing")]
        return value is None or value != value
    if match := re.fullmatch(r"(country|new)=(.*)", text):
        return str(row[match[1]]).lower() == match[2].lower()
    match = re.fullmatch(r"(?:(\S+) < )?(.*?)(?: (<=|>) (\S+))?", text)
    low, name, sign, end = match.groups()
    if name.startswith("log score of "):
        return True  # on the scale of the trees, which no prediction shows
    if ended := re.fullmatch(r"(\w+) after round (\d+)", name):
        value = after[int(ended[2])][ended[1]]
    else:
        value = after[0].get(name, row[name])
    if name == "day":
        read = lambda text: np.datetime64(text) if text else None  # noqa: E731
    else:
        read = lambda text: float(text) if text else None  # noqa: E731
    low, end = read(low), read(end)
    if sign == ">":
        return value > end
    return (low is None or low < value) and (end is None or value <= end)


def test_bounds_have_as_few_digits_as_needed():
    assert interval_text("x", 0.123456789, np.inf, 0.12345679, SCORES) == "x > 0.123456789"
    assert interval_text("x", 0.123456789, 0.9, 0.2, SCORES) == "0.1235 < x <= 0.9"
    assert interval_text("x", -np.inf, 1234567.5, 1234567.2, NUMBERS) == "x <= 1234570"
    assert interval_text("x", -np.inf, 1234564.5, 1234564.2, NUMBERS) == "x <= 1234564.5"
    assert interval_text("d", 19723.25, 19723.75, 19723.5, DATES) == "2024-01-01T06:00:00 < d <= 2024-01-01T18:00:00"
    assert interval_text("d", -np.inf, 1e300, 5, DATES) == "d <= day 1e+300"


def test_extreme_scores_and_unseen_levels_are_explained():
    data = rows("binary", 500)
    fix = mcgrad(stopping=None, rounds=2, trees=8).fit(data, data["y"])
    for p in (0.0, 1.0, 1e-9):
        row = {"p": p, "country": "XX", "age": None, "day": dt.date(2030, 1, 1)}
        found = fix.explain(row)
        assert sum(part.change for part in found.contributions) == pytest.approx(found.link_change, abs=1e-12)
        start = np.log(p) - np.log1p(-p) if 0 < p < 1 else logit(p)  # 1e-6 stands for exact zeros only
        assert found.after == pytest.approx(1 / (1 + np.exp(-start - found.link_change)), rel=1e-9, abs=1e-15)
        assert "country=XX" not in repr(found) + repr(fix.explain(row, details=True))
    for several in (data["p"], {"p": [0.1, 0.2]}.items()):
        with pytest.raises(ArgumentError, match="explain takes one row as a mapping"):
            fix.explain(several)
    with pytest.raises(ArgumentError, match="details are of one row, and explain got none"):
        fix.explain(details=True)
    shown = fix.explain({"p": 0.2}, details=True).to_frame()
    assert len(shown["condition"]) == len(fix.explain({"p": 0.2}).contributions)


def test_a_row_of_a_frame_is_explained():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(rows("binary", 500))
    fix = mcgrad(stopping=None, rounds=1, trees=8).fit(frame, frame["y"])
    row = frame.iloc[7]
    assert fix.explain(row) == fix.explain(row.to_dict())
    with pytest.raises(ArgumentError, match="got DataFrame"):
        fix.explain(frame[7:8])
