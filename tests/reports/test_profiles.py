"""Profiles: vocabulary, sections and defaults; validation of profile files."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trueup as tu
from trueup.errors import ArgumentError, FileError
from trueup.reports.model import count_cell
from trueup.reports.page import render
from trueup.reports.profiles import (
    DEFAULTS,
    KINDS,
    METRICS,
    PROFILES,
    Profile,
    SectionPlan,
    Vocabulary,
    load_profile,
    plural,
)
from trueup.reports.profiles.levels import column_levels
from trueup.reports.profiles.sections import (
    best_strategy,
    build_sections,
    compare_strategies,
    describe_stretches,
    interpret,
    net_benefit,
)

ROLES = {"outcome": "outcome", "prediction": "prediction"}


def lending(rows=4_000, **more):
    data = tu.simulate.lending(rows, seed=1)
    data["Grade"] = np.digitize(data["prediction"], [0.02, 0.05, 0.1, 0.2])
    return data | more


@pytest.fixture(scope="module")
def audited():
    return tu.audit(lending(), by=["region", "product", "Grade"], categorical=["Grade"], **ROLES)


def texts(section):
    return [[cell.text for cell in row] for row in section.table.rows]


def heads(section):
    return [heading.text for heading in section.table.columns]


# Bundled profiles


def test_profiles_are_the_toml_files_of_the_package():
    import trueup.reports.profiles as home

    files = {path.stem for path in Path(home.__file__).parent.glob("*.toml")}
    assert set(PROFILES) == files == {"general", "credit", "ads", "health"}
    assert PROFILES[0] == "general"


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_has_its_name_and_builds_its_sections(name, audited):
    profile = load_profile(name)
    assert profile.name == name
    made = build_sections(audited, name)
    assert [section.title for section in made] == [plan.title for plan in profile.sections]
    assert made == build_sections(audited, profile)
    for section, plan in zip(made, profile.sections, strict=True):
        if plan.kind in ("vintages", "stability"):  # this audit has neither dates nor a reference
            assert section.table is None
            assert section.lead
            continue
        assert section.table is not None
        assert all(len(row) == len(section.table.columns) for row in section.table.rows)


def test_defaults_are_arguments_of_an_audit_and_kinds_are_built(audited):
    import inspect

    known = set(inspect.signature(tu.audit).parameters) | {"top"}
    assert set(DEFAULTS) <= known
    for kind in KINDS:
        assert build_sections(audited, Profile("own", sections=(SectionPlan(kind, "a title"),)))[0].title == "a title"
    others = {"slope_se", "intercept_se", "in the large_se", "gini_se", "hosmer-lemeshow", "hosmer-lemeshow_df"}
    assert set(audited.summary.scores) - set(METRICS) == others


def test_options_keep_only_existing_columns():
    profile = Profile("own", defaults={"depth": 1, "by": ("a", "B"), "categorical": ("zip",)})
    assert profile.options(["b", "c", "A"]) == {"depth": 1, "by": ["A", "b"]}
    assert profile.options([]) == {"depth": 1}
    assert load_profile("credit").options(["RATING", "income"]) == {"categorical": ["RATING"]}


# Fields and values


def test_fields_name_their_worst_value(audited):
    scores, fields, values = build_sections(audited, "ads")
    harbour = next(row for row in texts(fields) if row[0] == "region")
    worst = audited["region=harbour"]
    assert harbour[3] == "harbour"
    assert harbour[4] == f"{worst.ratio:.2f}"
    assert [row[0] for row in texts(fields)] == ["region", "product", "Grade"]
    assert len(values.table.rows) == 12 + 5 + 5
    row = next(row for row in texts(values) if row[0] == "harbour")
    assert row[1:4] == ["region", f"{worst.n:,}", f"{round(worst.observed * worst.n):,}"]
    assert texts(scores)[0][:2] == ["normalised entropy", f"{audited.summary.scores['normalized entropy']:.4f}"]
    assert [row[0] for row in texts(scores)] == ["normalised entropy", "log loss", "observed rate", "predicted rate"]


def test_values_are_listed_worst_first_in_the_vocabulary(audited):
    own = Profile("own", vocabulary=Vocabulary(outcomes="clicks", outcome="click"), sections=(SectionPlan("values", "t"),))
    (section,) = build_sections(audited, own)
    assert heads(section)[:5] == ["value", "field", "rows", "clicks", "clicks predicted"]
    alone = [one for one in audited if one.depth == 1]
    assert [f"{row[1]}={row[0]}" for row in texts(section)] == [one.segment for one in alone]
    first = section.table.rows[0]
    assert first[3].value == round(alone[0].observed * alone[0].n)
    assert isinstance(first[3].value, int)
    assert first[4].value == alone[0].expected * alone[0].weight
    assert first[6].value == [alone[0].ratio_low_adjusted, alone[0].ratio_high_adjusted]


def test_values_do_not_repeat_their_field():
    data = lending()
    data["age"] = np.where(np.arange(4_000) % 9 == 0, np.nan, data["age"])
    found = tu.audit(data, by=["age", "region"], bins={"age": [30, 50]}, segments={"young": data["age"] < 30}, **ROLES)
    values = build_sections(found, "ads")[2]
    ages = [row[0] for row in texts(values) if row[1] == "age"]
    assert sorted(ages) == ["30 to 49", "< 30", ">= 50", "missing"]


def test_the_worst_of_many_values_are_listed_and_the_others_counted(audited):
    plan = SectionPlan("values", "values", parameters={"max_rows": 3, "fields": ("REGION", "product")})
    (section,) = build_sections(audited, Profile("own", sections=(plan,)))
    assert len(section.table.rows) == 3
    assert section.table.more == 12 + 5 - 3
    assert "harbour" in [row[0] for row in texts(section)]


def test_without_fields_a_sentence_replaces_the_tables():
    audit = tu.audit(lending(), by=[], **ROLES)
    scores, fields, values = build_sections(audit, "ads")
    assert fields.table is values.table is None
    assert "No field" in fields.lead
    assert "no field" in values.lead
    assert scores.table is not None


# Calibration slope and decision curve


def test_slope_and_intercept_are_interpreted(audited):
    line, _ = build_sections(audited, "health")
    found = {row[0]: row for row in texts(line)}
    assert list(found) == [
        "observed/expected (O/E)", "calibration in the large", "calibration slope", "calibration intercept"
    ]  # fmt: skip
    slope, error = (audited.summary.scores[name] for name in ("slope", "slope_se"))
    assert slope + 1.96 * error < 1
    assert "below 1: risks are too extreme on the logit scale" in found["calibration slope"][5]
    assert "robust (sandwich" in line.lead
    row = next(row for row in line.table.rows if row[0].text == "calibration slope")
    assert [cell.value for cell in row[1:3]] == [slope, error]
    assert row[3].value == pytest.approx([slope - 1.959964 * error, slope + 1.959964 * error])
    assert row[4].value == 1
    assert found["calibration slope"][3] == f"{slope - 1.959964 * error:.3f} to {slope + 1.959964 * error:.3f}"
    intercept = audited.summary.scores["intercept"]
    assert f"an observed {100 / (1 + math.exp(-intercept)):.3g}%" in found["calibration intercept"][5]


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (lambda p: p / 2, "calibration in the large", "too low on average: the odds would have to be multiplied by"),
        (lambda p: np.sqrt(p), "calibration in the large", "too high on average: the odds would have to be divided by"),
        (lambda p: p**0.4 / 3, "calibration slope", "too moderate on the logit scale"),
        (lambda p: 0.3 - p / 4, "calibration slope", "inverted"),
        (lambda p: p, "calibration slope", "the interval contains 1"),
        (lambda p: p / 2, "observed/expected (O/E)", "more was observed"),
        (lambda p: np.sqrt(p), "observed/expected (O/E)", "less was observed"),
    ],
)
def test_interpretations_follow_the_scores(change, name, said):
    data = tu.simulate.lending(6_000, seed=3, calibrated=True)
    data["prediction"] = change(data["truth"])
    line = build_sections(tu.audit(data, by=[], **ROLES), "health")[0]
    assert said in next(row[5] for row in texts(line) if row[0] == name)


@pytest.mark.filterwarnings("ignore::trueup.errors.OneClassWarning")
def test_a_regression_without_solution_is_announced():
    data = {"outcome": np.zeros(200), "prediction": np.linspace(0.1, 0.2, 200)}
    line, decision = build_sections(tu.audit(data, by=[], **ROLES), "health")
    assert "no finite solution" in line.lead
    assert [row[0] for row in texts(line)] == ["observed/expected (O/E)"]
    assert all(row[5] == "treat none" for row in texts(decision)[5:])


def test_net_benefit_equals_that_of_decision_curves(audited):
    data = lending()
    found = net_benefit(audited)
    curve = tu.decisions.decision_curve(data["outcome"], data["prediction"])
    (benefit,) = curve.benefit.values()
    np.testing.assert_allclose(found.threshold[1:], curve.threshold)
    np.testing.assert_allclose(found.model[1:], benefit, atol=1e-12)
    np.testing.assert_allclose(found.treat_all[1:], curve.treat_all, atol=1e-12)


def test_net_benefit_equals_hand_computed_values():
    # Of ten rows four are scored 0.5, two of them events; of the six scored 0.1 one is.
    data = {"prediction": [0.5] * 4 + [0.1] * 6, "outcome": [1, 1, 0, 0, 1, 0, 0, 0, 0, 0]}
    found = net_benefit(tu.audit(data, by=[], min_rows=1, **ROLES))
    assert found.model[20] == pytest.approx(0.2 - 0.2 * 0.25)
    assert found.treat_all[20] == pytest.approx(0.3 - 0.7 * 0.25)
    assert found.model[60] == 0.0
    assert found.model[0] == found.treat_all[0] == pytest.approx(0.3)


def test_the_decision_curve_is_plotted_and_the_best_strategy_named(audited):
    section = build_sections(audited, "health")[1]
    assert len(section.plot["model"].split()) == len(section.plot["treat_all"].split()) > 10
    assert not re.search("nan|inf", section.plot["model"] + section.plot["treat_all"])
    found = {row[0]: row for row in texts(section)}
    assert found["0.10"][5] == "model"
    assert found["0.50"][4] == "0"
    plan = SectionPlan("decision", "t", parameters={"thresholds": (0.25,), "max_threshold": 0.3})
    (own,) = build_sections(audited, Profile("own", sections=(plan,)))
    assert [row[0] for row in texts(own)] == ["0.25"]
    assert own.table.rows[0][0].value == 0.25
    assert "In the range shown, 0.01 to 0.30," in own.lead


def test_differences_in_net_benefit_have_paired_standard_errors(audited):
    data = lending()
    y, p, found = data["outcome"], data["prediction"], net_benefit(audited)
    for at in (2, 10, 25):
        cost = found.threshold[at] / (1 - found.threshold[at])
        gain, called = y - (1 - y) * cost, p >= found.threshold[at]
        ways = {"model": gain * called, "treat all": gain, "treat none": 0 * gain}
        for (one, other), (gained, error) in compare_strategies(found, at).items():
            difference = ways[one] - ways[other]
            assert gained == pytest.approx(difference.mean(), abs=1e-12)
            assert error == pytest.approx(difference.std() / math.sqrt(4_000), rel=1e-9)


def test_a_strategy_is_best_only_if_significantly_better():
    # 1,000 rows, one event among ten; at a threshold of 0.02 leaving out ten rows without an event wins next to nothing.
    y = np.tile([1.0] + [0.0] * 9, 100)
    p = np.where((np.arange(1_000) < 100) & (y == 0) & (np.arange(1_000) % 10 == 5), 0.01, 0.1)
    found = net_benefit(tu.audit({"outcome": y, "prediction": p}, by=[], **ROLES))
    assert found.model[2] > found.treat_all[2]
    assert best_strategy(found, 2) == "model"  # ten of ten rows without an event: that is more than noise
    p[5] = 0.1
    for at in (15, 25, 35, 45, 55, 65, 75, 85):
        p[at] = 0.1  # one row is left
    found = net_benefit(tu.audit({"outcome": y, "prediction": p}, by=[], **ROLES))
    assert found.model[2] > found.treat_all[2]
    assert best_strategy(found, 2) == "no clear winner"
    assert best_strategy(found, 1) == "treat all"  # so does the model: it treats all, and is no other way
    assert best_strategy(found, 50) == "treat none"


def test_no_strategy_is_called_best_under_the_null():
    # The score says nothing of the outcome, and the threshold is the rate: no way is better than another.
    random = np.random.default_rng(0)
    called = []
    for _ in range(300):
        data = {"outcome": (random.random(1_000) < 0.2).astype(float), "prediction": random.random(1_000) * 0.4}
        called.append(best_strategy(net_benefit(tu.audit(data, by=[], **ROLES)), 20))
    # A way must beat two others at once, so that each is called best in less than 2.5% of the times.
    assert np.mean([one != "no clear winner" for one in called]) < 0.075


def test_with_weights_no_strategy_is_called_best(audited):
    weighted = tu.audit(lending(w=np.linspace(1, 2, 4_000)), by=[], weight="w", **ROLES)
    section = build_sections(weighted, "health")[1]
    assert {row[5] for row in texts(section)} == {""}
    assert "no strategy is called best" in section.lead
    assert "no strategy is called best" not in build_sections(audited, "health")[1].lead


def test_the_lead_states_where_the_model_is_worse_than_treating_none():
    # Scores are twice the rates: from the rate of the highest on, treating by them does harm.
    p = np.repeat([0.1, 0.8], 1_000)
    y = np.concatenate([np.tile([1.0] + [0.0] * 19, 50), np.tile([1.0, 1.0, 0.0, 0.0, 0.0], 200)])
    data = {"outcome": y, "prediction": p}
    lead = build_sections(tu.audit(data, by=[], **ROLES), "health")[1].lead
    # At 0.05 < t <= 0.1 all are treated, as in treating all; 0.4 of the upper thousand have the outcome.
    assert "In the range shown, 0.01 to 0.80, the model lies below treating none from 0.41 on (significant or not)." in lead
    good = {"outcome": np.tile([1.0, 0.0], 1_000), "prediction": np.tile([0.9, 0.1], 1_000)}
    assert "nowhere below treating none or all" in build_sections(tu.audit(good, by=[], **ROLES), "health")[1].lead


def test_stretches_of_thresholds_are_described():
    t = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert describe_stretches(t, np.array([True, True, False, True, False])) == "up to 0.20 and at 0.40"
    assert describe_stretches(t, np.ones(5, bool)) == "throughout"
    assert describe_stretches(t, np.array([False, True, True, False, True])) == "from 0.20 to 0.30 and from 0.50 on"


def test_vocabulary_in_a_plot_is_escaped(audited):
    own = replace(load_profile("health"), vocabulary=Vocabulary(rows="<b>&"))
    page = render(audited, profile=own)
    assert "<b>&" not in page
    assert "net benefit per 1,000 &lt;b&gt;&amp;" in page
    assert build_sections(audited, "health")[1].plot["unit"] == "net benefit per 1,000 patients"


def test_levels_are_grouped_by_column(audited):
    found = column_levels(audited)
    assert {at: len(ranks) for at, ranks in found.items()} == {0: 12, 1: 5, 2: 5}
    names = [audited.keys.name(at) for at in found[2]]
    assert names == [f"Grade={k}" for k in range(5)]


# Other outcomes


def test_sections_for_binary_outcomes_are_replaced_by_a_sentence_for_others():
    random = np.random.default_rng(0)
    x = random.normal(5, 1, 500)
    real = tu.audit({"y": x + random.normal(0, 1, 500), "p": x, "g": random.choice(["a", "b"], 500)}, outcome="y",
                    prediction="p", task="regression")  # fmt: skip
    assert [s.table for s in (*build_sections(real, "credit"), *build_sections(real, "health"))] == [None] * 6
    assert "continuous" in build_sections(real, "credit")[0].lead
    scores, fields, values = build_sections(real, "ads")
    assert heads(values)[3:5] == ["observed rate", "predicted rate"]
    assert [row[0] for row in texts(scores)] == ["observed rate", "predicted rate"]
    p = random.dirichlet([1, 1, 1], 500)
    classes = tu.audit({"y": random.integers(0, 3, 500), "p0": p[:, 0], "p1": p[:, 1], "p2": p[:, 2],
                        "g": random.choice(["a", "b"], 500)}, outcome="y", prediction=["p0", "p1", "p2"])  # fmt: skip
    assert "multiclass" in build_sections(classes, "credit")[0].lead
    assert sorted(row[0] for row in texts(build_sections(classes, "ads")[2])) == ["a", "b"]
    assert fields.table is not None


def test_sections_that_need_rows_are_replaced_by_a_sentence_without_them(audited):
    bare = replace(audited, summary_source=None)
    assert all("does not have" in section.lead and section.table is None for section in build_sections(bare, "health"))
    assert build_sections(bare, "credit")[:2] == build_sections(audited, "credit")[:2]
    assert all("does not have" in section.lead for section in build_sections(bare, "credit")[2:])


def test_an_unknown_kind_of_section_is_rejected(audited):
    with pytest.raises(ArgumentError, match="no section of kind 'pie'"):
        build_sections(audited, Profile("own", sections=(SectionPlan("pie", "t"),)))


# Profile files


OWN = """
name = "insurance"
title = "Claims"
description = "Claims against premiums."

[vocabulary]
outcomes = "claims"
observed = "claim rate"

[defaults]
by = ["region"]
depth = 1
alpha = 0.01
min_rows = 100
adjust = "bh"
top = 5

[[sections]]
kind = "grades"
title = "By class"
lead = "As filed."
columns = ["region"]
level = 0.5
"""


def written(tmp_path, text, name="own.toml"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_profile_is_read_from_a_file(tmp_path, audited):
    path = written(tmp_path, OWN)
    profile = load_profile(path)
    assert load_profile(str(path)) == profile
    assert (profile.name, profile.title, profile.vocabulary.observed, profile.vocabulary.expected) == (
        "insurance", "Claims", "claim rate", "expected"
    )  # fmt: skip
    assert profile.options(["region"]) == {
        "depth": 1, "alpha": 0.01, "min_rows": 100, "adjust": "bh", "top": 5, "by": ["region"]
    }  # fmt: skip
    (section,) = build_sections(audited, path)
    assert heads(section)[4:9] == ["claims", "expected claims", "expected", "claim rate", "50% interval"]
    assert section.lead.startswith("As filed. Jeffreys test:")
    assert section.lead.endswith("One row per value of column 'region', sorted by expected, lowest first.")


def test_a_profile_can_extend_another(tmp_path):
    credit = load_profile("credit")
    own = load_profile(
        written(tmp_path, 'name = "own"\nextends = "credit"\n[vocabulary]\nscore = "risk"\n[defaults]\ndepth = 3')
    )
    assert own == replace(
        credit, name="own", vocabulary=replace(credit.vocabulary, score="risk"), defaults={**credit.defaults, "depth": 3}
    )
    none = load_profile(written(tmp_path, 'name = "own"\nextends = "credit"\nsections = []'))
    assert none.sections == ()


def test_plurals_are_derived_from_singulars(tmp_path):
    vocabulary = load_profile(
        written(tmp_path, 'name = "own"\n[vocabulary]\nsegment = "tariff class"\noutcome = "claim"')
    ).vocabulary
    assert (vocabulary.segments, vocabulary.outcomes) == ("tariff classes", "claims")
    vocabulary = load_profile(
        written(tmp_path, 'name = "own"\n[vocabulary]\nsegment = "cell"\nsegments = "cellae"')
    ).vocabulary
    assert (vocabulary.segments, vocabulary.outcomes) == ("cellae", "events")
    assert (
        load_profile(written(tmp_path, 'name = "own"\nextends = "ads"\n[vocabulary]\nscore = "p"')).vocabulary.segments
        == "slices"
    )


@pytest.mark.parametrize(
    ("term", "many"), [("slice", "slices"), ("tariff class", "tariff classes"), ("policy", "policies"), ("day", "days")]
)
def test_plurals_follow_english_rules(term, many):
    assert plural(term) == many


def test_byte_order_marks_and_windows_line_ends_are_accepted(tmp_path):
    assert load_profile(written(tmp_path, b'\xef\xbb\xbfname = "own"\r\ntitle = "t"\r\n')).title == "t"


SECTION = 'name = "a"\n[[sections]]\nkind = "grades"\ntitle = "t"\n'
BAD = {
    "": "has no name",
    "name = ": "is not TOML",
    'name = "a"\nname = "b"': "is not TOML",
    "x = " + "[" * 30_000: "is not TOML",
    "x = " + "9" * 5_000: "is not TOML",
    b"\xff\xfe": "not text in UTF-8",
    "#" * 70_000: "larger than 65,536 bytes",
    "name = 3": "'name' in .* must be text .*; got 3",
    'name = ""': "'name' in .* must be text",
    'name = "a\\nb"': "'name' in .* on one line",
    f'name = "{"x" * 61}"': "of 1 to 60 characters",
    'name = "a"\ntitel = "b"': "has an unknown key 'titel'\nhint: did you mean 'title'",
    'name = "a"\nqqq = 1': "has an unknown key 'qqq'\nhint: known keys here are name",
    'name = "a"\nextends = "own"': "'extends' in .* must be one of general",
    'name = "a"\nvocabulary = 3': "'vocabulary' in .* must be a table, written as \\[vocabulary\\]; got 3",
    'name = "a"\n[vocabulary]\nscor = "b"': "unknown key 'vocabulary.scor'\nhint: did you mean 'score'",
    'name = "a"\n[vocabulary]\nscore = ["b"]': "'vocabulary.score' in .* must be text",
    'name = "a"\n[defaults]\nalpha = 0': "'defaults.alpha' in .* must be a number between 0 and 1; got 0",
    'name = "a"\n[defaults]\nalpha = nan': "'defaults.alpha'",
    'name = "a"\n[defaults]\nalpha = true': "'defaults.alpha'",
    'name = "a"\n[defaults]\ndepth = 4': "'defaults.depth' in .* must be an integer from 1 to 3; got 4",
    'name = "a"\n[defaults]\ndepth = 2.0': "'defaults.depth'",
    'name = "a"\n[defaults]\ntop = true': "'defaults.top'",
    'name = "a"\n[defaults]\nadjust = "none"': "'defaults.adjust' in .* must be one of holm, max, bh, by; got 'none'",
    'name = "a"\n[defaults]\nby = "x"': "'defaults.by' in .* must be a list of at most 200 names; got 'x'",
    'name = "a"\n[defaults]\nby = [1]': "'defaults.by'",
    'name = "a"\n[defaults]\ncommand = "rm"': "unknown key 'defaults.command'",
    'name = "a"\n[sections]\nkind = "grades"': "'sections' in .* must be tables, written as \\[\\[sections\\]\\]; got",
    'name = "a"\nsections = [1]': "'sections' in .* must be tables",
    'name = "a"\n[[sections]]\ntitle = "t"': "'sections\\[0\\]' in .* has no kind\nhint: kinds are grades",
    'name = "a"\n[[sections]]\nkind = "grades"': "has no title",
    'name = "a"\n[[sections]]\nkind = "pie"\ntitle = "t"': "'sections\\[0\\].kind' in .* must be one of grades",
    SECTION + "most = 3": "unknown key 'sections\\[0\\].most'",
    SECTION + "column = ['a']": "hint: did you mean 'columns'",
    SECTION + "level = 95": "'sections\\[0\\].level' in .* must be a number between 0 and 1; got 95",
    SECTION + "lights = [0.01, 0.05]": "must be two p-values, of amber and of red",
    SECTION + "lights = [0.05]": "must be two p-values, of amber and of red",
    'name = "a"\nsign_off = ["x\\ny"]': "'sign_off' in .* must be a list of texts of 1 to 60 characters",
    SECTION.replace("grades", "decision") + "thresholds = [0.005]": "must be a list of multiples of 0.01",
    SECTION.replace("grades", "decision") + "thresholds = []": "must be a list of multiples of 0.01",
    SECTION.replace("grades", "decision") + "thresholds = [1]": "must be a list of multiples of 0.01",
    SECTION.replace("grades", "metrics") + 'show = ["ece"]': "must be a list of these: normalized entropy",
    SECTION.replace("grades", "values") + "max_rows = 0": "an integer from 1 to 10,000",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=lambda text: str(text)[:60])
def test_an_invalid_profile_file_is_rejected(tmp_path, text):
    with pytest.raises(FileError, match=re.compile(BAD[text], re.DOTALL)):
        load_profile(written(tmp_path, text))


def test_unknown_names_and_paths_are_rejected(tmp_path):
    with pytest.raises(ArgumentError, match=r"no profile 'helth'\nhint: did you mean 'health'\? profiles are general"):
        load_profile("helth")
    with pytest.raises(ArgumentError, match="no profile ''"):
        load_profile("")
    with pytest.raises(ArgumentError, match="a profile is a name or a path; got int"):
        load_profile(3)
    with pytest.raises(FileError, match=r"cannot read the profile .*: No such file"):
        load_profile(tmp_path / "none.toml")
    with pytest.raises(FileError, match="cannot read the profile"):
        load_profile(tmp_path)
    with pytest.raises(FileError, match="cannot read the profile"):
        load_profile("a\0b/x.toml")


def test_a_slope_that_may_be_positive_is_not_called_inverted():
    assert "inverted" not in interpret("slope", -0.2, 0.5, -1)
    assert "inverted" in interpret("slope", -0.8, -0.1, -1)


@pytest.mark.parametrize("value", ["1" + "0" * 400, "0x" + "f" * 20_000, "-1e400", "nan", "[0x" + "f" * 20_000 + "]"])
@pytest.mark.parametrize(
    "line", ["[defaults]\nalpha = {}", "[defaults]\ndepth = {}", "vocabulary = {}", "sections = {}", "title = {}",
             '[[sections]]\nkind = "decision"\ntitle = "t"\nthresholds = {}',
             '[[sections]]\nkind = "decision"\ntitle = "t"\nthresholds = [{}]'],
)  # fmt: skip
def test_a_number_too_large_to_print_is_rejected_with_a_message(tmp_path, line, value):
    file = tmp_path / "huge.toml"
    file.write_text(f'name = "huge"\n{line.format(value)}\n')
    with pytest.raises(FileError, match="must be"):
        load_profile(file)


@pytest.mark.filterwarnings("ignore::trueup.errors.OneClassWarning")
def test_a_decision_curve_without_events_has_a_readable_axis():
    data = lending() | {"outcome": np.zeros(4_000, int)}
    _, section = build_sections(tu.audit(data, outcome="outcome", prediction="prediction", by=["region"]), "health")
    axis = section.plot["frame"].y_axis
    labels = [axis.label(tick) for tick in axis.ticks]
    assert "1.0" in labels
    assert not any("e" in label for label in labels)
    assert [row[5] for row in texts(section)] == ["treat none"] * len(section.table.rows)


def test_large_sums_keep_their_digits_as_data():
    assert count_cell(1_234_567.4).value == 1_234_567.4
    assert (count_cell(1_234_567 + 1e-7).value, count_cell(1_234_567 + 1e-7).text) == (1_234_567, "1,234,567")
