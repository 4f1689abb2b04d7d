"""The profile of credit: grades and vintages with traffic lights, exposure, ranking, stability, sign-off."""

from __future__ import annotations

import json
import math
import pickle
import re

import numpy as np
import pytest

import trueup as tu
from trueup import metrics
from trueup.errors import ArgumentError, DataError
from trueup.reports.page import json_lines, markdown, render, section_dict
from trueup.reports.profiles import Profile, SectionPlan
from trueup.reports.profiles.grades import light, probability_text
from trueup.reports.profiles.sections import build_sections
from trueup.reports.profiles.validation import stability

ROLES = {"outcome": "outcome", "prediction": "prediction"}


def lending(rows=4_000, seed=1, **more):
    data = tu.simulate.lending(rows, seed=seed)
    data["Grade"] = np.digitize(data["prediction"], [0.02, 0.05, 0.1, 0.2])
    return data | more


@pytest.fixture(scope="module")
def audited():
    return tu.audit(lending(), by=["region", "Grade"], categorical=["Grade"], **ROLES)


def texts(section):
    return [[cell.text for cell in row] for row in section.table.rows]


def heads(section):
    return [heading.text for heading in section.table.columns]


# Grades


def test_grades_are_listed_in_order_with_a_total(audited):
    section, data = build_sections(audited, "credit")[0], lending()
    assert heads(section) == [
        "Grade", "Jeffreys", "binomial", "rows", "defaults", "expected defaults", "mean PD", "default rate", "95% interval",
        "obs/exp", "state", "adjusted p",
    ]  # fmt: skip
    assert [row[0] for row in texts(section)] == ["0", "1", "2", "3", "4", "all rows"]
    here = data["Grade"] == 1
    rows, events = int(here.sum()), int(data["outcome"][here].sum())
    mean = data["prediction"][here].mean()
    low, high = metrics.jeffreys_interval(events, rows)
    row = dict(zip(heads(section), section.table.rows[1], strict=True))
    assert row["rows"].value == rows
    assert row["defaults"].value == events
    assert isinstance(row["defaults"].value, int)
    assert row["expected defaults"].value == pytest.approx(mean * rows)
    assert row["mean PD"].value == pytest.approx(mean, rel=1e-12)
    assert row["obs/exp"].value == pytest.approx(events / (mean * rows))
    assert row["95% interval"].text == f"{low:.4f} to {high:.4f}"
    assert row["95% interval"].value == [low, high]
    for name, test in (("Jeffreys", metrics.jeffreys_test), ("binomial", metrics.binomial_test)):
        p_value = test(events, rows, mean)
        assert row[name].value == {"light": light(p_value), "p": pytest.approx(p_value, rel=1e-9)}
        assert row[name].state == f"light {light(p_value)}"
        assert row[name].text.startswith(light(p_value))
    assert "One row per value of column 'Grade', in numerical order." in section.lead


def test_the_last_columns_of_grades_are_the_test_of_the_audit(audited):
    section = build_sections(audited, "credit")[0]
    for row in section.table.rows:
        finding = audited.overall if row[0].text == "all rows" else audited[f"Grade={row[0].text}"]
        assert row[10].text == ("miscalibrated" if finding.p_adjusted <= 0.05 else "within noise")
        assert row[11].value == finding.p_adjusted
    assert "not adjusted for their number" in section.note
    assert "State and adjusted p are the test of the audit, adjusted for all segments" in section.note


def test_lights_are_counted_beside_what_chance_would_give(audited):
    section = build_sections(audited, "credit")[0]
    colors = [row[1].value["light"] for row in section.table.rows[:-1]]
    counts = ", ".join(f"{colors.count(color)} {color}" for color in ("green", "amber", "red"))
    assert section.lead.startswith(f"Jeffreys test: {counts}")
    assert "about 0.25 of 5 lights would be amber or red by chance" in section.lead


def test_the_range_of_the_ratios_is_stated(audited):
    section = build_sections(audited, "credit")[0]
    ratios = {row[0].text: row[9] for row in section.table.rows[:-1] if row[5].value >= 5}
    low, high = (choose(ratios, key=lambda name: ratios[name].value) for choose in (min, max))
    stated = f"Observed/expected ranges from {ratios[low].text} ({low}) to {ratios[high].text} ({high})"
    assert stated in section.lead


def test_lights_change_at_their_limits():
    assert [light(p) for p in (0.05, 0.0499, 0.01, 0.0099)] == ["green", "amber", "amber", "red"]
    assert light(0.0099, (0.1, 0.001)) == "amber"


def test_lights_follow_the_limits_of_the_profile(audited):
    plan = SectionPlan("grades", "t", parameters={"columns": ("grade",), "lights": (0.999, 0.998)})
    section = build_sections(audited, Profile("own", sections=(plan,)))[0]
    low = [row[1].value["p"] < 0.998 for row in section.table.rows]
    assert [row[1].value["light"] == "red" for row in section.table.rows] == low
    assert "amber is a p-value below 99.9%" in section.note


def test_scores_that_are_too_high_are_green_and_counted():
    data = lending()
    data["prediction"] = np.clip(data["prediction"] * 3, 0, 0.99)
    section = build_sections(tu.audit(data, by=["Grade"], categorical=["Grade"], **ROLES), "credit")[0]
    assert {row[1].value["light"] for row in section.table.rows} == {"green"}
    assert "5 green, 0 amber, 0 red; 5 of the green have a PD above the interval, too high." in section.lead


def test_false_alarms_of_lights_are_at_their_level():
    random, grades, lights = np.random.default_rng(0), np.repeat(np.arange(8), 250), []
    plan = SectionPlan("grades", "t", parameters={"columns": ("grade",)})
    for _ in range(40):
        p = random.uniform(0.05, 0.15, 2_000)
        data = {"grade": grades, "prediction": p, "outcome": (random.random(2_000) < p).astype(int)}
        audit = tu.audit(data, by=["grade"], categorical=["grade"], depth=1, **ROLES)
        rows = build_sections(audit, Profile("own", sections=(plan,)))[0].table.rows[:-1]
        lights += [(row[1].value["p"], row[2].value["p"]) for row in rows]
    jeffreys, binomial = np.array(lights).T
    error = math.sqrt(0.05 * 0.95 / len(lights))
    assert np.mean(jeffreys < 0.05) == pytest.approx(0.05, abs=3 * error)
    assert np.mean(binomial < 0.05) <= 0.05 + 3 * error
    assert (binomial >= jeffreys).all()


def graded(names, **more):
    """Build the section of grades by score, the lowest first, with some rows without a grade."""
    data = lending()
    data["Grade"] = np.array([*names, None], object)[np.where(np.arange(4_000) % 50, np.clip(data["Grade"], 0, 4), 5)]
    return build_sections(tu.audit(data, by=["Grade"], **more, **ROLES), "credit")[0]


def test_grades_of_letters_are_sorted_by_mean_score_with_missing_last():
    section = graded(["AAA", "AA", "A", "BBB", "B"])
    assert [row[0] for row in texts(section)] == ["AAA", "AA", "A", "BBB", "B", "missing", "all rows"]
    assert "sorted by mean PD, lowest first" in section.lead


def test_grades_of_numbers_and_bins_are_in_numerical_order():
    section = graded(["10.5", "9", "2.5", "100", "-1"])
    assert [row[0] for row in texts(section)][:5] == ["-1", "2.5", "9", "10.5", "100"]
    data = lending(Grade=tu.simulate.lending(4_000, seed=1)["prediction"])
    bins = tu.audit(data, by=["Grade"], bins={"Grade": [0.02, 0.1]}, **ROLES)
    section = build_sections(bins, "credit")[0]
    assert [row[0] for row in texts(section)] == ["< 0.02", "[0.02, 0.1)", ">= 0.1", "all rows"]
    assert "column 'Grade', lowest first" in section.lead


def test_a_probability_near_one_is_not_shown_as_one():
    assert [probability_text(p) for p in (0.99991, 0.9999, 0.996, 0.5, 1e-17)] == [
        "> 0.9999", "0.9999", "0.9960", "0.50", "< 1e-16"
    ]  # fmt: skip
    data = lending()
    data["prediction"] = np.clip(data["prediction"] * 3, 0, 0.99)
    section = build_sections(tu.audit(data, by=[], **ROLES), "credit")[0]
    total = section.table.rows[-1]
    assert total[1].text == "green > 0.9999"
    assert total[1].value["light"] == "green"
    assert 0.9999 < total[1].value["p"] <= 1


def test_a_level_named_missing_differs_from_missing_values():
    section = graded(["missing", "AA", "A", "BBB", "B"])
    assert [row[0] for row in texts(section)] == ["missing", "AA", "A", "BBB", "B", "is missing", "all rows"]


def test_without_a_column_of_grades_score_bands_are_shown():
    audit = tu.audit(lending(), by=["region"], **ROLES)
    section = build_sections(audit, "credit")[0]
    assert heads(section)[0] == "PD band"
    assert "No column of grades" in section.lead
    assert heads(section)[-1] == "obs/exp"  # a band is not a segment of the audit
    assert [row[0] for row in texts(section)] == [*(f"band {k}" for k in range(1, 11)), "all rows"]
    counts = [int(row[4].replace(",", "")) for row in texts(section)]
    assert sum(counts[:-1]) == counts[-1] == int(lending()["outcome"].sum())


def test_a_grade_with_few_rows_is_listed():
    data = lending()
    data["Grade"] = np.where(np.arange(len(data["Grade"])) < 3, "rare", "usual")
    section = build_sections(tu.audit(data, by=["Grade"], **ROLES), "credit")[0]
    assert ["rare", "3"] in [[row[0], row[3]] for row in texts(section)]


def test_weighted_grades_have_weighted_means_and_no_tests_by_number():
    data = lending(w=np.random.default_rng(0).uniform(1, 3, 4_000))
    options = {"by": ["Grade"], "categorical": ["Grade"], **ROLES}
    weighted = build_sections(tu.audit(data, weight="w", **options), "credit")[0]
    assert heads(weighted) == ["Grade", "rows", "mean PD", "default rate", "obs/exp", "state", "adjusted p"]
    assert "Means are weighted by 'w'" in weighted.note
    here = data["Grade"] == 1
    ratio = data["w"][here] @ data["outcome"][here] / (data["w"][here] @ data["prediction"][here])
    assert weighted.table.rows[1][4].value == pytest.approx(ratio)
    sampled = tu.audit(data, sampling={"positive": 1, "negative": 0.5}, **options)
    assert "Means are weighted by 'sampling'" in build_sections(sampled, "credit")[0].note


def test_a_grade_without_events_has_an_interval_that_starts_at_zero():
    rng = np.random.default_rng(0)
    grade = np.repeat(["a", "b"], 1_000)
    p = np.where(grade == "a", 0.3 * rng.random(2_000), 0.5)  # sums of such scores leave traces
    y = np.where(grade == "a", 0, rng.random(2_000) < 0.5).astype(int)
    found = tu.audit({"y": y, "p": p, "grade": grade}, outcome="y", prediction="p", by=["grade"])
    row = texts(build_sections(found, "credit")[0])[0]
    assert (row[0], *row[3:5]) == ("a", "1,000", "0")
    assert row[8].startswith("0 to ")


def test_the_worst_of_many_grades_are_listed_in_order():
    random = np.random.default_rng(0)
    p = random.uniform(0.05, 0.4, 12_000)
    data = {"grade": np.arange(12_000) % 300, "outcome": (random.random(12_000) < p) * 1, "prediction": p}
    found = tu.audit(data, outcome="outcome", prediction="prediction", by=["grade"], categorical=["grade"], min_rows=10)
    section = build_sections(found, "credit")[0]
    listed = [row[0] for row in texts(section)]
    worst = [one.segment.removeprefix("grade=") for one in found if one.segment != "all rows"][:200]
    assert listed == [*sorted(worst, key=int), "all rows"]
    assert section.table.more == 100
    assert "the 200 values with the strongest evidence" in section.lead


def test_rare_grades_are_listed_once():
    data = lending()
    data["Grade"] = np.where(np.arange(4_000) < 70, np.arange(4_000) % 2, data["Grade"] + 2)
    audit = tu.audit(data, by=["Grade"], categorical=["Grade"], **ROLES)
    assert "Grade=(2 rare levels)" in [finding.segment for finding in audit]
    section = build_sections(audit, "credit")[0]
    assert [row[0] for row in texts(section)] == ["0", "1", "2", "3", "4", "5", "6", "all rows"]
    assert "of 7 lights" in section.lead


def test_lights_of_clustered_rows_are_qualified(audited):
    clustered = tu.audit(lending(who=np.arange(4_000) // 4), by=["Grade"], cluster="who", **ROLES)
    assert "Rows of one cluster are not independent" in build_sections(clustered, "credit")[0].note
    assert "cluster" not in build_sections(audited, "credit")[0].note


# Vintages


def test_vintages_are_periods_of_a_date_in_order():
    days = np.datetime64("2020-01-01") + np.random.default_rng(0).integers(0, 1_000, 4_000)
    audit = tu.audit(lending(opened=days), by=["region", "opened"], bins={"opened": "year"}, **ROLES)
    section = build_sections(audit, "credit")[1]
    assert heads(section)[:3] == ["opened", "Jeffreys", "binomial"]
    assert [row[0] for row in texts(section)] == ["2020", "2021", "2022", "all rows"]
    assert "column 'opened', earliest first" in section.lead
    assert "outcome window" in section.lead


def test_a_named_column_of_vintages_is_sorted_by_name():
    names = np.array(["2021Q1", "2020Q4", "2020Q3"])[np.arange(4_000) % 3]
    section = build_sections(tu.audit(lending(Vintage=names), by=["Vintage"], **ROLES), "credit")[1]
    assert [row[0] for row in texts(section)][:3] == ["2020Q3", "2020Q4", "2021Q1"]
    assert "in alphabetical order" in section.lead


# Exposure


@pytest.fixture(scope="module")
def exposed():
    data = lending(ead=np.random.default_rng(0).lognormal(8, 1, 4_000))
    options = {"by": ["Grade"], "categorical": ["Grade"], **ROLES}
    return data, tu.audit(data, **options), tu.audit(data, weight="ead", **options)


def test_observed_over_expected_is_shown_by_number_and_by_exposure(exposed):
    data, audit, by_exposure = exposed
    section = build_sections(audit, "credit", exposure=by_exposure)[0]
    assert heads(section)[9:11] == ["obs/exp by number", "obs/exp by exposure"]
    for row in section.table.rows:
        here = np.full(4_000, True) if row[0].text == "all rows" else data["Grade"] == int(row[0].text)
        y, p, w = (data[name][here] for name in ("outcome", "prediction", "ead"))
        assert row[9].value == pytest.approx(y.sum() / p.sum())
        assert row[10].value == pytest.approx(w @ y / (w @ p))
    assert "by number of defaults and weighted by exposure (ead)" in section.note


def test_score_bands_have_no_exposure_of_their_own(exposed):
    _, _, by_exposure = exposed
    audit = tu.audit(exposed[0], by=[], **ROLES)
    section = build_sections(audit, "credit", exposure=by_exposure)[0]
    assert [row[10] for row in texts(section)][:-1] == ["-"] * 10
    assert section.table.rows[-1][10].value == pytest.approx(by_exposure.overall.ratio)


def test_an_audit_that_is_not_of_the_exposure_is_rejected(exposed, tmp_path):
    _, audit, by_exposure = exposed
    short = {name: column[:3_000] for name, column in exposed[0].items()}
    other = tu.audit(short, by=["Grade"], weight="ead", **ROLES)
    renamed = tu.audit(exposed[0] | {"q": exposed[0]["prediction"]}, by=[], outcome="outcome", prediction="q", weight="ead")
    for main, wrong, message in (
        (audit, audit, "the audit passed as exposure has no weight"),
        (audit, 3, "exposure must be an audit; got int"),
        (audit, other, "the audits are of different rows: 4,000 and 3,000"),
        (audit, renamed, "the audits are of different scores"),
        (by_exposure, by_exposure, "the audit is itself weighted, by 'ead'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            tu.report(main, tmp_path / "a.html", profile="credit", exposure=wrong)


# Ranking and stability


def test_measures_are_those_of_the_metrics(audited):
    data, section = lending(), build_sections(audited, "credit")[2]
    y, p = data["outcome"], data["prediction"]
    values = {row[0].text: row[1].value for row in section.table.rows}
    assert values["Gini"] == pytest.approx(metrics.gini(y, p))
    assert values["KS"] == pytest.approx(metrics.ks(y, p))
    test = metrics.hosmer_lemeshow(y, p)
    assert values["Hosmer-Lemeshow"] == pytest.approx(test.statistic)
    readings = {row[0].text: row[3].text for row in section.table.rows}
    assert "chi-squared with 10 degrees of freedom" in readings["Hosmer-Lemeshow"]
    assert "a test for one look, which depends on the bins" in readings["Hosmer-Lemeshow"]
    assert "no reference scores were passed" in readings["PSI"]
    assert build_sections(audited, "credit")[3].table is None


def test_the_reference_is_an_audit_or_scores(audited):
    earlier = lending(3_000, seed=5)
    reference = tu.audit(earlier, by=["region"], **ROLES)
    by_audit = build_sections(audited, "credit", reference=reference)
    by_scores = build_sections(audited, "credit", reference=earlier["prediction"])
    expected = metrics.psi(earlier["prediction"], lending()["prediction"])
    assert by_audit[3] == by_scores[3]
    assert [row[3].value for row in by_audit[3].table.rows] == pytest.approx(expected.contributions)
    row = by_audit[2].table.rows
    assert row[3][1].value == pytest.approx(expected.value)
    assert heads(by_audit[2])[3] == "reference"
    assert row[0][3].value == pytest.approx(metrics.gini(earlier["outcome"], earlier["prediction"]))
    assert re.search("(below|above) the reference", row[0][4].text)
    assert "reference" not in heads(by_scores[2])
    assert by_audit[3].table.rows[0][0].text.startswith("up to ")
    assert "By convention" in by_audit[3].note


@pytest.mark.parametrize(("power", "call"), [(1.0, "stable"), (0.85, "a shift to examine"), (0.6, "a major shift")])
def test_the_stability_index_is_called_by_convention(audited, power, call):
    section = build_sections(audited, "credit", reference=lending()["prediction"] ** power)[3]
    assert f": {call} (" in section.lead


def test_sums_of_an_audit_are_enough(audited):
    copy = pickle.loads(pickle.dumps(audited))
    reference = pickle.loads(pickle.dumps(tu.audit(lending(3_000, seed=5), by=[], **ROLES)))
    exact = stability(audited, lending(3_000, seed=5)["prediction"])
    assert stability(copy, reference).value == pytest.approx(exact.value, rel=0.15)
    sections = build_sections(copy, "credit", reference=reference)
    assert sections[:2] == build_sections(audited, "credit")[:2]
    assert "interpolated between 400 quantiles" in sections[3].note


def test_weighted_ranking_has_no_interval(audited):
    weighted = tu.audit(lending(w=np.random.default_rng(0).uniform(1, 3, 4_000)), by=[], weight="w", **ROLES)
    assert texts(build_sections(weighted, "credit")[2])[0][2] == ""
    assert texts(build_sections(audited, "credit")[2])[0][2] != ""


def test_a_reference_that_does_not_apply_is_rejected(audited, tmp_path):
    with pytest.raises(ArgumentError, match="reference must hold probabilities between 0 and 1"):
        build_sections(audited, "credit", reference=[0.1, 3.0])
    with pytest.raises(DataError, match="reference must be finite"):
        build_sections(audited, "credit", reference=[0.1, math.nan])
    real = tu.audit({"y": np.arange(99.0), "p": np.arange(99.0) + 1}, outcome="y", prediction="p", task="regression", by=[])
    with pytest.raises(ArgumentError, match="the reference audit has no distribution"):
        build_sections(audited, "credit", reference=real)
    for name in ("reference", "exposure"):
        with pytest.raises(ArgumentError, match=f"the profile 'general' has no section for {name}"):
            tu.report(audited, tmp_path / "a.html", **{name: [0.1]})


# The page


def test_all_formats_have_the_sections(audited, tmp_path):
    reference = lending(3_000, seed=5)["prediction"]
    path = tu.report(audited, tmp_path / "a.html", profile="credit", reference=reference)
    page = path.read_text(encoding="utf-8")
    assert re.search('<span class="badge light (green|amber|red)">', page)
    assert "fixed before the current scores are counted" in page
    summary = markdown(audited, profile="credit", reference=reference)
    assert "fixed before the current scores are counted" in summary
    data = json.loads("".join(json_lines(audited, "credit", reference=reference)))
    assert data["sections"][0]["rows"][0]["Jeffreys"].keys() == {"light", "p"}
    assert data["sections"][3]["note"].startswith("By convention")
    assert section_dict(build_sections(audited, "credit", reference=reference)[3]) == data["sections"][3]


def test_the_page_of_a_profile_with_signers_has_a_sign_off_block(audited):
    page = render(audited, profile="credit")
    block = page[page.index('<section id="sign-off">') : page.index("<footer>")]
    for text in ("Model owner", "Validator", "Risk committee", "version", "audited by", "4,000 rows", "signature"):
        assert text in block
    assert 'id="sign-off"' not in render(audited)
    own = Profile("own", sign_off=("<i>",))
    assert "<bdi>&lt;i&gt;</bdi>" in render(audited, profile=own)
