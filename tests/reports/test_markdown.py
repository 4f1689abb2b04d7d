"""Markdown summaries: correct numbers, and safety against hostile names."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from trueup.audits.settings import Source
from trueup.errors import ArgumentError
from trueup.reports.page import code, markdown, prose
from trueup.reports.profiles import Profile, Vocabulary
from trueup.reports.summary import headline

ROLES = {"outcome": "outcome", "prediction": "prediction"}
HOSTILE = (
    "<script>alert(1)</script>", "a|b", "back`tick", "``", "*bold* _it_", "[x](http://evil.example)", "line\nbreak",
    "@everyone #1", "\\|", "| --- |", "x" * 10_000, "&lt;b&gt;", "", " padded ", "![i](x)", "עברית", "$x$",
)  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    data = tu.simulate.lending(20_000, seed=1)
    before = tu.audit(data, by=["region", "product"], **ROLES)
    return before, tu.audit({**data, "prediction": data["truth"]}, by=["region", "product"], **ROLES)


def tables(text):
    """Return every table as rows of cells, split at unescaped bars as GitHub does."""
    found, last = [], False
    for line in text.split("\n"):
        inside = line.startswith("|")
        if inside and not last:
            found.append([])
        if inside:
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        last = inside
    return found


def test_a_path_that_ends_with_md_selects_the_summary(tmp_path):
    found = tu.audit(tu.simulate.lending(3_000, seed=0), outcome="outcome", prediction="prediction", by=["region"])
    path = tu.report(found, tmp_path / "audit.md", title="Loans *of* May")
    assert path.read_text() == markdown(found, title="Loans *of* May")
    assert path.read_text().startswith("## Loans &#42;of&#42; May\n")


def test_a_summary_has_verdict_figures_worst_segments_and_provenance(pair):
    audit = pair[0]
    text = markdown(audit, top=3)
    start = f"## Calibration audit\n\n**{headline(audit)}.** 6 of 78 segments are miscalibrated at 5% (Holm): "
    assert text.startswith(f"{start}{len(audit.problems)} distinct problems. Largest problem: ")
    problems, figures, worst = tables(text)
    assert problems[0] == ["problem", "rows", "observed", "expected", "excess events", "obs/exp", "95% interval"]
    assert [row[0].split("<br>")[0] for row in problems[2:]] == [
        f"`{problem.finding.segment}`" for problem in audit.problems[:3]
    ]
    assert ["distinct problems", f"{len(audit.problems)} (6 of 78 segments)"] in figures
    assert [row[0] for row in worst[2:]] == [f"`{finding.segment}`" for finding in audit.worst(3)]
    assert worst[2][1] == "**miscalibrated**"
    assert "and 75 more" in text
    assert audit.summary.fingerprint[:16] in text
    assert ".fit(" in text
    assert "\n2. If these errors matter, fit a correction on these rows" in text
    assert text.count("\n") < 80


def test_nothing_found_names_no_segment_as_worst(pair):
    text = markdown(pair[1])
    assert text.startswith("## Calibration audit\n\n**No miscalibration found.** None of the 78 segments tested at 5%")
    assert "Main problems" not in text
    assert "worst" not in text.partition("<details>")[0]


def test_a_tolerance_is_stated_with_every_problem():
    data = tu.simulate.lending(20_000, seed=1)
    text = markdown(tu.audit(data, by=["region", "product"], tolerance="10%", **ROLES))
    assert "**Material: miscalibrated by more than 10%.**" in text
    assert tables(text)[0][2][:2] == ["`region=harbour`", "**material**"]
    assert "Do not rely on the scores in these segments until they are corrected." in text
    assert "tolerance='10%'" in text


def test_two_audits_are_compared(pair):
    text = markdown(list(pair), top=5)
    assert "6 segments miscalibrated before, 0 after. 0 of 6 segments still miscalibrated, 6 no longer" in text
    problems, figures, compared = tables(text)
    assert figures[0] == ["", "`before`", "`after`"]
    assert problems[0] == ["problem", "rows", "obs/exp", "excess", "before", "after"]
    harbour = next(row for row in compared if row[0] == "`region=harbour`")
    ratios = " → ".join(f"{audit['region=harbour'].ratio:.2f}" for audit in pair)
    assert (harbour[2], harbour[4], harbour[6]) == (ratios, "**miscalibrated**", "within noise")
    assert next(row for row in problems if row[0] == "`region=harbour`")[2::2] == [ratios, "**miscalibrated**"]
    assert len(compared) == 2 + 5
    back = markdown({"a": pair[1], "b": pair[0]})
    assert "0 segments miscalibrated with a, 6 with b. 6 newly miscalibrated." in back


def test_a_segment_of_only_one_audit_is_marked_as_absent(pair):
    other = tu.audit(tu.simulate.lending(5_000, seed=2), by=["product"], **ROLES)
    text = markdown({"one": pair[0], "other": other})
    harbour = next(row for row in tables(text)[2] if row[0] == "`region=harbour`")
    assert harbour[2:7] == ["", "", "**miscalibrated**", harbour[5], "absent"]


def test_vocabulary_and_sections_of_a_profile_are_used(pair):
    text = markdown(pair[0], "credit", top=1)
    assert text.startswith("## Audit of probabilities of default")
    problems, figures, grades, measures, worst = tables(text)
    assert problems[0][2:5] == ["default rate", "mean PD", "excess defaults"]
    assert any(row[0] == "largest problem: excess of defaults" for row in figures)
    assert worst[0][3:5] == ["default rate", "mean PD"]
    assert grades[0][:5] == ["PD band", "Jeffreys", "binomial", "rows", "defaults"]
    assert [row[0] for row in measures[2:]] == ["`Gini`", "`KS`", "`Hosmer-Lemeshow`", "`PSI`"]
    both = markdown(list(pair), "credit")
    assert "### PD and default rate by grade: after" in both
    assert both.count("### PD and default rate by grade") == 1
    assert "¼" not in markdown(pair[0], "ads")


def test_names_from_the_data_are_shown_as_text_and_break_no_table():
    random = np.random.default_rng(0)
    rows = 3_400
    p = random.random(rows)
    names = np.array(HOSTILE, object)[np.arange(rows) % len(HOSTILE)]
    data = {"prediction": p, "outcome": (random.random(rows) < p**2).astype(float), "a|b`_<i>@me": names}
    audit = tu.audit(data, by=["a|b`_<i>@me"], **ROLES)
    audit = replace(audit, source=Source((("<b>|`.csv", 3, "ab" * 32),), "trueup audit 'x|y`'"))
    for text in (markdown(audit, top=50), markdown([audit, audit], top=50), markdown(audit, "ads", top=50)):
        for table in tables(text):
            assert len({len(row) for row in table}) == 1
        assert "<script" not in text
        assert not re.search(r"<(?!/?(code|sub|details|summary)>)", re.sub(r"`[^`\n]*`", "", text))
        outside = re.sub(r"<code>.*?</code>|`[^`\n]*`", "", text)
        assert not re.search(r"[@#]\w", outside.replace("&#", ""))
        assert "http://" not in outside
        assert max(len(line) for line in text.split("\n")) < 3_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a=b & c=d", "`a=b & c=d`"),
        ("<b>", "<code>&#60;b&#62;</code>"),
        ("a|b", "<code>a&#124;b</code>"),
        ("a`b*c*", "<code>a&#96;b&#42;c&#42;</code>"),
        ("a\\", "<code>a&#92;</code>"),
        ("two\nlines", "`two·lines`"),
        (" x", "<code> x</code>"),
        ("", "<code></code>"),
        ("ü|☃", "<code>ü&#124;☃</code>"),
        ("a| www.b.c", "<code>a&#124; www&#46;b.c</code>"),
    ],
)
def test_names_are_shown_as_code(text, shown):
    assert code(text) == shown


def test_prose_is_escaped():
    assert prose("*a* @me #12 [x](y) www.x.y") == "&#42;a&#42; @\u200bme #\u200b12 &#91;x&#93;(y) www&#46;x.y"


def test_limits_of_the_audit_are_listed():
    random = np.random.default_rng(0)
    data = {"prediction": random.random(200), "outcome": random.integers(0, 2, 200).astype(float), "g": np.arange(200) % 9}
    audit = tu.audit(data, by=["g"], categorical=["g"], min_rows=100, **ROLES)
    text = markdown(audit)
    assert "### Limits of this audit" in text
    assert "too small to test: 9 segments have fewer than 100 rows" in text
    none = markdown(tu.audit(data, by=["g"], min_rows=1_000, **ROLES))
    assert "**Not testable.** No segment has 1,000 rows." in none
    assert "Worst" not in none


def test_continuous_outcomes_are_summarized():
    random = np.random.default_rng(0)
    x = random.normal(0, 1, 500)
    text = markdown(tu.audit({"y": x + random.normal(0, 1, 500), "p": x}, outcome="y", prediction="p", task="regression"))
    assert "root mean squared error" in text
    assert "nan" not in text


def test_summaries_are_deterministic(pair):
    assert markdown(pair[0]) == markdown(pair[0])
    assert "Worst" not in markdown(pair[0], top=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda audit: markdown(audit, top=-1), "top must be an integer at least 0; got -1"),
        (lambda audit: markdown(audit, top=True), "top must be"),
        (lambda audit: markdown(audit, top=2.0), "top must be"),
        (lambda audit: markdown(audit, "medicine"), "there is no profile 'medicine'"),
        (lambda audit: markdown([]), "needs at least one audit"),
        (lambda audit: markdown({"a": 3}), "got int as 'a'"),
        (lambda audit: markdown("audit"), "got str"),
    ],
)
def test_invalid_arguments_are_rejected(pair, call, message):
    with pytest.raises(ArgumentError, match=message):
        call(pair[0])


def test_segments_with_the_same_text_stay_separate():
    rng = np.random.default_rng(0)
    p = rng.random(3_000)
    columns = {"a": rng.choice(["x", "x & b=u"], 3_000), "b": rng.choice(["u", "v"], 3_000)}
    data = {"y": (rng.random(3_000) < p**2).astype(int), "p": p, **columns}
    found = tu.audit(data, outcome="y", prediction="p", by=["a", "b"])
    text = markdown([found, found], top=100)
    assert [row[0] for row in tables(text)[2]].count("`a=x & b=u`") == 2
    assert f"{found.rejected:,} of {found.rejected:,} segments still miscalibrated" in text


def test_text_columns_are_aligned_left_and_numbers_right(pair):
    problems, _, scores, fields, values, worst = tables(markdown(pair[0], "ads"))
    assert problems[1] == ["---", *["---:"] * 5, "---"]
    assert worst[1] == ["---", "---", *["---:"] * 4, "---", *["---:"] * 3]
    assert scores[1] == ["---", "---:", "---"]
    assert dict(zip(fields[0], fields[1], strict=True))["worst value"] == "---"
    sides = dict(zip(values[0], values[1], strict=True))
    assert (sides["field"], sides["state"], sides["rows"]) == ("---", "---", "---:")
    compared = tables(markdown(list(pair)))[2]
    assert compared[1] == ["---", "---:", "---", "---", *["---", "---:"] * 2]


def test_the_vocabulary_is_used_throughout(pair):
    vocabulary = Vocabulary(segment="tariff class", segments="tariff classes", rows="policies")
    for text in (
        markdown(pair[0], Profile("own", vocabulary=vocabulary)),
        markdown(list(pair), Profile("own", vocabulary=vocabulary)),
    ):
        own = re.sub("<sub>.*</sub>", lambda found: found[0].partition("reproduce with")[0], text)
        assert "6 of 78 tariff classes are miscalibrated at 5% (Holm)" in own
        assert "<summary>Worst tariff classes</summary>" in own
        assert not re.search(r"classs|\bsegments?\b", own)


def test_long_tables_list_the_worst_and_count_the_others():
    rng = np.random.default_rng(0)
    p = rng.random(30_000)
    group = rng.integers(0, 60, 30_000).astype(str)
    y = rng.random(30_000) < np.where(group == "37", p**3, p)
    text = markdown(tu.audit({"y": y.astype(int), "p": p, "g": group}, outcome="y", prediction="p"), "ads")
    values = tables(text)[4]
    assert values[2][:2] == ["`37`", "g"]
    assert len(values) == 2 + 40
    assert "\nand 20 more\n" in text


def test_a_summary_states_what_a_fix_corrected(pair):
    data = tu.simulate.lending(20_000, seed=1)
    fix = tu.MCGrad("prediction", ["region", "product"]).fit(data, data["outcome"])
    text = markdown(list(pair), fix=fix)
    assert "### What the fix corrected\n\nMCGrad changed scores by" in text
    corrected = tables(text)[2]
    assert corrected[2][0].startswith("`")
    assert 3 <= len(corrected) <= 2 + 10
    assert "What the fix corrected" not in markdown(list(pair))
    with pytest.raises(ArgumentError, match="fix must be a fitted calibrator"):
        markdown(list(pair), fix=3)


def test_patches_of_a_fix_are_listed(pair):
    data = tu.simulate.lending(20_000, seed=1)
    fix = tu.Multiaccuracy("prediction", ["region", "product"]).fit(data, data["outcome"])
    patches = tables(markdown(list(pair), fix=fix))[3]
    assert patches[0][:3] == ["patch", "scores", "rows"]
    assert patches[2][0].startswith("`1. ")
    assert len(patches) > 2
