"""The HTML page: its contents, its safety against hostile names, and comparisons."""

from __future__ import annotations

import functools
import html as html_module
import html.parser
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from trueup.audits.settings import Source
from trueup.audits.text import describe_scores, format_share, number, signed_count
from trueup.errors import ArgumentError
from trueup.reports.compare import curve_pairs
from trueup.reports.model import map_columns
from trueup.reports.page import build_page, render
from trueup.reports.profiles import Vocabulary, load_profile
from trueup.reports.summary import headline

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quoted\" 'twice' <img src=x onerror=alert(1)>",
    "</title></svg></style><b>bold",
    "{{ 7 * 7 }} {% raw %}",
    "👩‍🚀 emoji",
    "עברית مرحبا",
    "x" * 10_000,
    "line\nbreak\ttab\x00nul\x1b[31m",
    "&amp; &lt;",
)


class Reader(html.parser.HTMLParser):
    """Collects tags, attributes and texts of a page, and asserts that elements are closed in order."""

    EMPTY = frozenset({"meta", "br", "input", "link", "img", "line", "circle", "rect", "path", "polyline", "polygon"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def loans(rows: int = 6000, seed: int = 0, *, calibrated: bool = False):
    data = tu.simulate.lending(rows, seed, calibrated=calibrated)
    del data["truth"]
    return data


def audit(data, **settings):
    return tu.audit(data, outcome="outcome", prediction="prediction", **settings)


@functools.cache
def page_of(*audits):
    """Return the page of an audit, or of the comparison of several: tests that only read it share it."""
    return render(audits[0] if len(audits) == 1 else list(audits))


@functools.cache
def text_of(*audits):
    return Reader(page_of(*audits)).text


@pytest.fixture(scope="module")
def before():
    return audit(loans(20_000), by=["region", "product", "employment"])


@pytest.fixture(scope="module")
def after():
    return audit(loans(20_000, calibrated=True), by=["region", "product", "employment"])


@pytest.fixture(scope="module")
def hostile():
    rng = np.random.default_rng(0)
    n = 300 * len(HOSTILE)
    p = rng.uniform(0.1, 0.4, n)
    data = {
        "<b>column</b>": np.repeat(np.array(HOSTILE, object), 300),
        "outcome": (rng.random(n) < 2 * p) * 1,
        "prediction": p,
    }
    return audit(data, by=["<b>column</b>"])


def test_the_page_starts_with_the_verdict(before, after):
    page = text_of(before)
    start = f"{headline(before)} 8 of {before.tested} segments are miscalibrated at 5% (Holm): 4 distinct problems."
    assert start in page.partition("Are the scores calibrated overall?")[0]
    assert "No miscalibration found" in text_of(after)


def test_the_summary_has_the_main_problems_with_pictures_and_the_next_steps(before):
    page = page_of(before)
    top = page.partition('id="whole"')[0]
    assert top.count('<svg viewBox="-8 0 116 14"') == 3  # observed/expected with its interval
    shown = Reader(top[top.index("<main") :].replace("<main>", "").rsplit("<section", 1)[0]).text
    for problem in before.problems[:3]:
        finding = problem.finding
        scores = describe_scores(finding)
        name = f"{finding.segment}{f' {scores[0].upper()}{scores[1:]}' if scores else ''}"
        assert f"{name} {format_share(finding.share)}" in shown
        assert signed_count(finding.excess) in shown
    assert "What to do next Decide how large an error matters" in shown
    assert shown.index("Main problems") < shown.index("What to do next")


@pytest.mark.parametrize(
    ("tolerance", "kind", "shades"),
    [(None, "flagged", {"shade-0", "shade-1", "shade-4", "shade-5"}), ("10%", "flagged", {"shade-0", "shade-possible", "shade-material"}),
     ("200%", "possible", {"shade-0", "shade-within", "shade-possible"}), ("500%", "within", {"shade-0", "shade-within"})],
)  # fmt: skip
def test_colours_state_whether_errors_are_material(tolerance, kind, shades):
    found = audit(loans(20_000), by=["region", "product", "employment"], tolerance=tolerance)
    page = render(found)
    assert re.search(r'<div class="verdict (\w+)" id="verdict">', page)[1] == kind
    assert {cell.split()[0] for cell in re.findall(r'<td class="(shade-\w+)" data-first', page)} == shades
    legend = page.partition('class="below legend"')[2].partition("</p>")[0]
    assert shades <= set(re.findall(r"shade-\w+", legend))
    assert page.count('class="tolerated"') == (0 if tolerance is None else page.count('<svg viewBox="-8 0 116 14"'))


def test_details_are_folded(before, after):
    folded = re.findall(r'<details class="fold [a-z]*" id="([a-z-]+)">', page_of(before))
    assert folded == ["all-problems", "all-segments", "scores", "limits", "settings", "provenance", "words"]
    assert '<details class="fold " id="limits" open>' in page_of(after)  # nothing was found: how much could be?
    both = re.findall(r'<details class="fold [a-z]*" id="([a-z-]+)">', page_of(before, after))
    assert both == ["all-segments", "measures", "limits", "settings", "provenance", "words"]


def test_all_problems_are_listed_with_what_they_explain(before):
    listed = page_of(before).partition('id="all-problems"')[2].partition("</details>")[0]
    for problem in before.problems:
        assert html_module.escape(problem.finding.segment) in listed
        assert not problem.folded or html_module.escape(problem.folded[0]) in listed


def test_a_page_without_testable_segments_states_it():
    result = audit(loans(40), by=["region"])
    page = Reader(render(result)).text
    assert "Not testable No segment has 50 rows." in page
    assert "Main problems" not in page


def test_the_page_shows_key_figures_table_notes_settings_and_definitions(before):
    page = text_of(before)
    for words in (
        "distinct problems 4", "largest certain error", "largest problem: excess of events, by score", "observed/expected, all rows", "All segments",
        "95% interval", "adjusted p", "would have been detected with 80% power", "Settings", "How to read this page", "Holm",
    ):  # fmt: skip
        assert words in page, words
    assert before.worst(1)[0].segment in page


def rows_of(page):
    """Return the rows of the table of segments: indices of their columns, number of rows, and name."""
    table = page.partition('id="segments"')[2].partition("</table>")[0]
    found = re.findall(r'<tr[^>]*data-by="([\d ]*)" data-n="(\d+)"><th scope="row"[^>]*><bdi>(.*?)</bdi>', table)
    return [(by, int(n), html_module.unescape(name)) for by, n, name in found]


def certain_ratio(finding):
    """Return the end of the simultaneous interval of observed/expected closer to 1, or 1."""
    return max(1, finding.ratio_low_adjusted) if finding.ratio > 1 else min(1, finding.ratio_high_adjusted)


def columns_of(segment):
    return {re.split("=| is missing", part)[0] for part in segment.split(" & ")} - {"all rows"}


def data_of(page):
    return json.loads(page.partition('<script type="application/json" id="page-data">')[2].partition("</script>")[0])


def test_the_table_has_all_segments_worst_first_with_their_filter_keys(before):
    rows = rows_of(page_of(before))
    assert [name for _, _, name in rows] == [finding.segment for finding in before.worst(before.tested)]
    assert [n for _, n, _ in rows] == [finding.n for finding in before.worst(before.tested)]
    columns = ["region", "product", "employment"]
    for by, _, name in rows:
        assert {columns[int(at)] for at in by.split()} == columns_of(name)


def test_a_long_table_has_the_worst_thousand_segments_and_stays_under_two_megabytes():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.6, 60_000)
    names = np.array([f"{text}{at}" for at in range(40) for text in ("👩‍🚀 a name that is rather long ", "עברית ")], object)
    data = {f"column {at}": rng.choice(names[:34], 60_000) for at in range(2)}
    found = audit({**data, "outcome": (rng.random(60_000) < p) * 1, "prediction": p}, min_rows=20)
    page = render(found)
    assert len(rows_of(page)) == len(data_of(page)["rows"]) == 1000 < found.tested
    assert f"{found.tested - 1000:,} more tested segments" in page
    assert len(page.encode()) < 2_000_000


def test_every_row_has_its_own_figures_and_curve(before):
    details = data_of(page_of(before))
    for entry, finding in zip(details["rows"], before.worst(before.tested), strict=True):
        ((figures, curve),) = entry
        shown = dict(zip(details["labels"], figures, strict=True))
        assert shown["rows"] == f"{finding.n:,} ({format_share(finding.share)})"
        assert float(shown["observed"]) == pytest.approx(finding.observed, rel=1e-3)
        assert float(shown["events, observed"].replace(",", "")) == pytest.approx(finding.n * finding.observed, abs=0.51)
        assert curve[0] == pytest.approx(finding.curve.predicted, rel=1e-3)
        assert curve[4] == finding.curve.rows.tolist()


def test_a_page_recommends_the_next_step(before, after):
    page = page_of(before)
    line = 'trueup.MCGrad("prediction", ["region", "product", "employment"]).fit(rows, rows["outcome"])'
    assert line in Reader(page).text
    assert "No correction is needed" in text_of(after)
    assert "Collect more rows" in Reader(render(audit(loans(40), by=["region"]))).text


def test_the_overall_plot_has_a_band_a_histogram_and_cumulative_differences(before):
    page = page_of(before)
    assert page.count('class="band"') == 2
    histogram = before.summary.histogram
    top = float(re.search(r'class="curve large" viewBox="0 0 \d+ ([\d.]+)"', page)[1])
    assert top > 500
    assert 1 <= page.count('class="rows"') <= int((histogram.weight > 0).sum())
    assert f"range {number(before.overall.ecce)}, adjusted p = {number(before.overall.p_adjusted, 2)}" in page
    assert "Cumulative differences of all rows" in page


def test_the_map_shows_the_largest_certain_error_of_each_pair_of_columns(before):
    page = page_of(before)
    fields = re.findall(
        r'data-first="(\d)" data-second="(\d)" title="[^"]*"><b>([\d.%–]+)</b><span>(\d+) of (\d+)</span>', page
    )
    assert len(fields) == 6
    columns = ["region", "product", "employment"]
    for first, second, error, flagged, tested in fields:
        used = {columns[int(first)], columns[int(second)]}
        found = [
            f for f in before.worst(before.tested)
            if columns_of(f.segment) == used
        ]  # fmt: skip
        ratios = [certain_ratio(f) for f in found if f.p_adjusted <= 0.05]
        sizes = [max(ratio, 1 / ratio) - 1 for ratio in ratios]
        assert error == ("–" if max(sizes, default=0) == 0 else f"{math.floor(100 * max(sizes))}%")
        assert int(flagged) == sum(f.p_adjusted <= 0.05 for f in found)
        assert int(tested) == len(found)


def test_the_terms_of_the_brier_score_are_shown(before):
    scores = before.summary.scores
    page = text_of(before)
    for name in ("brier", "miscalibration", "discrimination", "uncertainty"):
        assert number(scores[name], 4) in page, name


def test_a_page_states_its_provenance(before):
    page = text_of(before)
    assert before.summary.fingerprint in page
    assert "trueup.audit(data, outcome='outcome', prediction='prediction', by=['region', 'product', 'employment'])" in page
    source = Source((("scores.csv", 1234, "ab" * 32),), "trueup audit scores.csv --outcome y", "trueup fit scores.csv")
    page = Reader(render(replace(before, source=source))).text
    for words in (
        "scores.csv (1,234 bytes)",
        "ab" * 32,
        "trueup audit scores.csv --outcome y",
        "trueup fit scores.csv",
    ):
        assert words in page, words


def test_detectable_shifts_are_stated(after):
    page = text_of(after)
    points = number(100 * after.overall.mde, 2)
    assert f"a shift of {points} percentage points between observed and expected would have been detected" in page


def test_a_profile_adds_its_sections_and_vocabulary(before):
    page = Reader(render(before, profile="credit")).text
    assert "default rate" in page
    with pytest.raises(ArgumentError):
        render(before, profile="nothing like it")


@pytest.mark.parametrize("name", ["ads", "health"])
def test_a_page_uses_the_vocabulary_of_its_profile_throughout(before, after, name):
    words = load_profile(name).vocabulary
    for results in (before, [before, after]):
        page = render(results, profile=name)
        shown = Reader(page).text
        for text in (
            f"tested {words.segments}", f"only miscalibrated {words.segments}", f"observed/expected, all {words.rows}",
            f"largest problem: excess of {words.outcomes}, by score", f"· 20,000 {words.rows}",
        ):  # fmt: skip
            assert text in shown, text
        assert f'text-anchor="middle">{words.observed}</text>' in page
        assert "segment" not in shown.partition("Settings")[0].lower()
        assert data_of(page)["axes"] == [words.observed, words.expected]


def test_axes_have_default_labels_if_those_of_the_profile_are_long(before):
    vocabulary = replace(load_profile("health").vocabulary, observed="rate of what was observed")
    page = render(before, profile=replace(load_profile("health"), vocabulary=vocabulary))
    assert 'text-anchor="middle">observed</text>' in page


def test_sections_of_a_profile_follow_the_overall_plot_or_the_comparison(before, after):
    page = render(before, profile="health")
    assert page.index('id="where"') < page.index('<section class="profile') < page.index('id="scores"')
    both = render({"pctr": before, "pctr_trueup": after}, profile="health")
    titles = re.findall(r'<section class="profile[^"]*">\s*<h2><bdi>(.*?)</bdi>', both)
    assert titles
    assert all(title.endswith(": pctr_trueup") for title in titles)
    assert both.index("<tbody>") < both.index('<section class="profile') < both.index('id="segments"')


def test_a_page_names_its_files_and_rows(before):
    files = tuple((f"part {at}.csv", 1, "ab" * 32) for at in range(5))
    eyebrow = Reader(render(replace(before, source=Source(files, "trueup audit")))).text
    assert "Calibration audit · part 0.csv, part 1.csv and 3 more · 20,000 rows" in eyebrow
    assert "Calibration audit · 20,000 rows" in text_of(before)


def test_settings_list_the_categorical_columns():
    data = loans(2_000)
    found = tu.audit(data, outcome="outcome", prediction="prediction", by=["region", "age"])
    assert "columns that form segments region, age categorical columns region maximum" in Reader(render(found)).text


def test_the_multicalibration_error_is_among_the_metrics(before):
    page = text_of(before)
    assert f"lower is better {number(before.mce_absolute, 4)}" in page


def test_a_comparison_shows_changes_and_what_the_fix_corrected(before, after, fitted):
    page = render([before, after], fix=fitted[0])
    first, second = before.worst(1)[0], after[before.worst(1)[0].segment]
    text = Reader(page).text
    assert f"{number(first.ratio)} → {number(second.ratio)}" in text
    assert "What the fix corrected" in text
    assert "Metrics side by side" in text
    assert number(before.summary.scores["brier"], 4) in text
    assert number(after.summary.scores["brier"], 4) in text
    assert len(data_of(page)["rows"][0]) == 2


def other_scores(data, name, scores):
    return tu.audit({**data, name: scores}, outcome="outcome", prediction=name, by=["region", "product"])


@pytest.fixture(scope="module")
def fitted():
    """Return a fix and the rows it was fitted on."""
    training = loans(6_000, seed=1)
    return tu.MCGrad(prediction="prediction", features=["region", "product"]).fit(training, "outcome"), training


def test_a_page_states_which_rows_and_score_a_fix_was_fitted_on(fitted):
    fix, held_out = fitted[0], loans(6_000, seed=2)
    was, now = (
        other_scores(held_out, name, p)
        for name, p in (("prediction", held_out["prediction"]), ("q", fix.predict(held_out)))
    )
    page = Reader(render([was, now], fix=fix)).text
    assert "those of the 6,000 rows the model was fitted on, not of the rows on this page." in page
    assert re.search(r"account for \d+% of the squared changes", page)
    assert "share of rows" in page
    assert "It was fitted to correct" not in page
    other = other_scores(held_out, "old", held_out["prediction"])
    page = Reader(render([other, now], fix=fix)).text
    assert "It was fitted to correct 'prediction', which is not the score it is compared with here ('old')." in page


def test_a_page_warns_if_its_rows_look_like_the_training_rows_of_the_fix(fitted):
    fix, data = fitted
    both = [other_scores(data, "prediction", p) for p in (data["prediction"], fix.predict(data))]
    page = Reader(render(both, fix=fix)).text
    assert "and the rows on this page look like the same rows: results on them are optimistic" in page
    assert "Compare on rows that were not used for the fit. These look like the rows the model was fitted on" in page
    fresh = loans(6_000, seed=2)
    page = Reader(
        render([other_scores(fresh, "prediction", p) for p in (fresh["prediction"], fix.predict(fresh))], fix=fix)
    ).text
    assert "not of the rows on this page" in page
    assert "optimistic" not in page


def test_an_unfitted_fix_is_rejected(before, after):
    for fix in (tu.MCGrad(), "model.trueup"):
        with pytest.raises(ArgumentError, match="fitted calibrator"):
            render([before, after], fix=fix)


def test_every_element_of_a_page_is_closed(before, after, hostile):
    for page in (page_of(before), page_of(before, after), page_of(hostile)):
        assert Reader(page).open == []


def test_a_page_loads_nothing(before, after, hostile):
    for page in (page_of(before), page_of(before, after), page_of(hostile)):
        read = Reader(page)
        assert not {"link", "img", "iframe", "object", "embed", "base", "form", "a"} & set(read.tags)
        assert not [entry for entry in read.attributes if entry[1] in ("src", "href", "xlink:href", "action", "srcset")]
        assert not re.search(r"url\(|@import|https?://", page)


def test_the_content_security_policy_allows_only_the_script_of_the_page(before):
    import base64
    import hashlib

    page = page_of(before)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for tag, name, value in Reader(page).attributes if tag == "meta" and "default-src" in value)
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_names_are_shown_as_text(hostile):
    page = render(hostile, title="<i>title</i>")
    read = Reader(page)
    assert read.tags.count("script") == 2  # the data, and the one that runs
    assert page.count("</script") == 2
    assert "<!--" not in page
    assert not {"img", "i"} & set(read.tags)
    assert not [entry for entry in read.attributes if entry[1].startswith("on")]
    for words in (
        "<script>alert(1)</script>",
        "onerror=alert(1)",
        "{{ 7 * 7 }}",
        "emoji",
        "עברית",
        "<i>title</i>",
        "&amp; &lt;",
    ):
        assert words in read.text, words
    assert "\x00" not in page
    assert "\x1b" not in page


def test_a_name_of_ten_thousand_characters_and_its_tooltip_are_shortened(hostile):
    page = page_of(hostile)
    assert max(len(word) for word in page.split()) < 2000
    titles = [value for _, name, value in Reader(page).attributes if name == "title" and "xxxx" in value]
    assert titles
    assert all(90 < len(title) <= 1000 for title in titles)


def test_curves_have_titles_and_points_have_tooltips(before):
    page = page_of(before)
    curve = before.overall.curve
    assert page.partition("<script")[0].count('role="img"') == 1 + page.count("<title>Reliability curve of ") == 5
    first = f"predicted {curve.predicted[0]:.3g}, observed {curve.observed[0]:.3g}"
    assert first[:20] in page
    assert "<title>Reliability curve of all rows: " in page


def test_non_finite_values_are_shown_and_break_nothing(before):
    columns = {name: column.copy() for name, column in before.columns.items()}
    for name, value in (
        ("sigma", math.inf),
        ("ratio", math.nan),
        ("ratio_high", math.inf),
        ("bias", math.nan),
        ("mde", math.nan),
    ):
        columns[name][:5] = value
    curve = before.curves[0]
    broken = replace(curve, predicted=np.full(len(curve), np.nan), low=np.full(len(curve), -np.inf))
    found = replace(
        before, columns=columns, curves={**before.curves, 0: broken, 1: replace(curve, high=curve.high * np.inf)}
    )
    for page in (render(found), render([found, before])):
        assert Reader(page).open == []
        assert "nan" not in re.findall(r'(?:x1|x2|y1|y2|cx|cy|points)="([^"]*)"', page)
        assert "inf" in page


def test_a_regression_with_negative_values_has_a_page():
    rng = np.random.default_rng(1)
    p = rng.normal(-5, 2, 3000)
    data = {"g": rng.choice(["a", "b"], 3000), "outcome": p + rng.normal(0.5, 1, 3000), "prediction": p}
    found = tu.audit(data, outcome="outcome", prediction="prediction", task="regression")
    read = Reader(render(found))
    assert read.open == []
    assert "Miscalibrated" in read.text
    assert "observed - expected, all rows +0.4" in read.text
    assert "observed/expected" not in read.text.partition("How to read this page")[0]


def test_several_classes_have_a_page():
    rng = np.random.default_rng(1)
    p = rng.dirichlet([2, 2, 2], 3000)
    data = {
        "p_a": p[:, 0],
        "p_b": p[:, 1],
        "p_c": p[:, 2],
        "y": rng.choice(["a", "b", "c"], 3000),
        "g": rng.choice(["u", "v"], 3000),
    }
    found = tu.audit(data, outcome="y", prediction=["p_a", "p_b", "p_c"], by=["g"])
    page = Reader(render(found)).text
    assert "top label" in page
    assert "classes a, b, c" in page


def test_the_weight_column_appears_only_with_weights(before):
    data = loans(2000)
    data["w"] = np.full(2000, 2.0)
    weighted = audit(data, by=["region"], weight="w")
    assert ">weight</th>" in render(weighted)
    assert ">weight</th>" not in page_of(before)


def test_two_audits_are_named_before_and_after(before, after):
    page = text_of(before, after)
    assert f"{before.rejected} segments miscalibrated before, 0 after" in page
    assert (
        f"0 of {before.rejected} segments still miscalibrated, {before.rejected} no longer miscalibrated, 0 newly" in page
    )
    assert "Miscalibrated" in page
    assert "No miscalibration found" in page


def test_a_mapping_names_the_audits(before, after):
    page = Reader(render({"<raw>": before, "mended": after, "again": after})).text
    assert "<raw>: all rows" in page
    assert "mended: all rows" in page


def test_a_segment_of_only_one_audit_is_marked_as_absent(before):
    other = audit(loans(4000, seed=3), by=["region", "term"])
    page = Reader(render([before, other])).text
    assert "absent" in page
    assert "Settings before task binary" in page


def test_settings_that_are_the_same_are_shown_once(before, after):
    assert text_of(before, after).count("minimum rows per segment") == 1


def test_the_same_results_give_the_same_page(before, after):
    assert render([before, after]) == page_of(before, after)


@pytest.mark.parametrize("results", [[], {}, "audit", 3, [1], {"a": "b"}])
def test_a_report_of_anything_but_audits_is_rejected(results, tmp_path):
    with pytest.raises(ArgumentError, match="audit"):
        tu.report(results, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_names_that_look_the_same_are_rejected(before):
    with pytest.raises(ArgumentError, match="same name"):
        render({"a\x00": before, "a\x01": before})


def test_report_returns_the_path_it_wrote(before, tmp_path):
    path = tmp_path / "audit.html"
    assert tu.report(before, str(path)) == path
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [path]


def test_a_list_of_one_audit_gives_the_page_of_that_audit(before):
    assert render([before]) == page_of(before)


def test_audits_with_different_alpha_are_rejected():
    data = tu.simulate.lending(2000, 0)
    roles = {"outcome": "outcome", "prediction": "prediction", "by": ["region"]}
    with pytest.raises(ArgumentError, match="must share alpha and adjust"):
        render([tu.audit(data, **roles), tu.audit(data, **roles, alpha=0.01)])


def same_text():
    """Audit rows with two segments of the same text: a value of column a reads like a pair of values."""
    rng = np.random.default_rng(0)
    p = rng.random(3_000)
    columns = {"a": rng.choice(["x", "x & b=u"], 3_000), "b": rng.choice(["u", "v"], 3_000)}
    data = {"y": (rng.random(3_000) < p**2).astype(int), "p": p, **columns}
    return tu.audit(data, outcome="y", prediction="p", by=["a", "b"])


def without_rows(audit, **changes):
    """Return an audit as of a file: curves and problems are known, rows are not."""
    return replace(audit, held_rows=None, problem_ranks=audit.held_rows.problems, **changes)


def test_a_comparison_plots_the_problems_of_one_of_the_audits(before):
    good = replace(before, columns=before.columns | {"p_adjusted": np.ones(len(before))})
    names = [problem.finding.segment for problem in before.problems[:3] if problem.finding.depth]
    for pair in ({"a": before, "b": good}, {"a": good, "b": before}):
        assert [name.text for name, _ in curve_pairs(build_page(pair), Vocabulary())] == names
    without = without_rows(before, curves={at: curve for at, curve in before.curves.items() if at != 0})
    shown = curve_pairs(build_page({"a": before, "b": without}), Vocabulary())
    assert before.finding(0).segment not in [name.text for name, _ in shown]
    assert all(curve["plot"] is not None for _, curves in shown for curve in curves)
    assert len(curve_pairs(build_page([good, good]), Vocabulary())) == 4  # no finding: the strongest evidence


def test_a_curve_that_was_not_kept_differs_from_a_curve_without_bins(before):
    empty = replace(before.curves[1], **{name: getattr(before.curves[1], name)[:0] for name in vars(before.curves[1])})
    found = without_rows(before, curves={2: before.curves[2], 1: empty})
    page = render(found)
    rows = data_of(page)["rows"]
    assert [rows[at][0][1] if at < 2 else len(rows[at][0][1]) for at in range(3)] == [None, [], 5]
    assert "kept for the worst 1,000" in page


def test_segments_with_the_same_text_stay_separate_in_a_comparison():
    found = same_text()
    table = build_page([found, found]).table
    texts = [row[0].text for row in table.rows]
    assert len(texts) == found.tested
    assert texts.count("a=x & b=u") == 2
    assert sorted(row[1].text for row in table.rows) == sorted(f"{finding.n:,}" for finding in found.worst(found.tested))


def test_a_page_without_findings_does_not_ask_where_the_miscalibration_is():
    rng = np.random.default_rng(4)
    p = rng.random(4_000)
    data = {"y": (rng.random(4_000) < p).astype(int), "p": p, "a": rng.choice(["x", "z"], 4_000)}
    found = tu.audit(data, outcome="y", prediction="p", by=["a"])
    assert not found.miscalibrated
    assert "Where is the miscalibration" not in Reader(render(found)).text


def test_the_share_of_scores_outside_the_axis_is_stated():
    rng = np.random.default_rng(4)
    p = np.append(rng.random(4_000) / 20, np.full(40, 0.9))
    data = {"y": (rng.random(4_040) < p).astype(int), "p": p, "a": np.full(4_040, "x")}
    found = tu.audit(data, outcome="y", prediction="p", by=["a"])
    assert "0.99% of the rows have scores outside this axis." in Reader(render(found)).text


def test_the_map_has_the_counts_of_every_pair():
    found = same_text()
    columns, rows, _ = map_columns(found)
    names = [name.text for name in columns]
    frame = found.to_frame()
    for row, first in zip(rows, names, strict=True):
        for field, second in zip(row, names, strict=False):
            mine = {names.index(first), names.index(second)}
            at = [k for k in range(len(found)) if {c for c in found.keys.columns[k].tolist() if c >= 0} == mine]
            assert field["tested"] == len(at)
            assert field["flagged"] == int((frame["p_adjusted"][at] <= 0.05).sum())


def test_infinite_evidence_comes_first_and_is_shown():
    rng = np.random.default_rng(1)
    p = np.append(rng.random(1_000), np.ones(200))
    y = np.append((rng.random(1_000) < p[:1_000]).astype(int), np.zeros(200, int))
    data = {"y": y, "p": p, "a": np.repeat(["x", "certain"], [1_000, 200])}
    found = tu.audit(data, outcome="y", prediction="p", by=["a"])
    page = render(found)
    assert found.finding(0).sigma == math.inf
    assert rows_of(page)[0][2] == "a=certain"
    details = data_of(page)
    assert dict(zip(details["labels"], details["rows"][0][0][0], strict=True))["sigma"] == "inf"


def test_plots_of_weighted_rows_are_labelled_with_weight():
    rng = np.random.default_rng(1)
    p = rng.random(1_000)
    data = {"y": (rng.random(1_000) < p).astype(int), "p": p, "w": 0.5 + rng.random(1_000)}
    page = Reader(render(tu.audit(data, outcome="y", prediction="p", weight="w", by=[]))).text
    assert "share of the weight, from the lowest score" in page
    assert "share of the rows, from the lowest score" not in page


@pytest.fixture(scope="module")
def long_names():
    """Audit a thousand segments of one column, whose names take six bytes per character in a page."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.6, 20_000)
    quotes = 3_000 * '"'
    names = np.array([f"{at}{quotes}{at}" for at in range(1_000)], object)
    return audit({"grade": np.repeat(names, 20), "outcome": (rng.random(20_000) < p) * 1, "prediction": p}, min_rows=20)


@pytest.mark.parametrize("profile", ["general", "credit", "ads"])
def test_long_names_with_escapes_leave_a_page_under_two_megabytes(long_names, profile):
    assert long_names.tested > 1_000
    assert len(render(long_names, profile=profile).encode()) < 2_000_000


def test_confidence_intervals_and_bands_are_explained_only_if_shown(before):
    shown, without = text_of(before), Reader(render(replace(before, summary_source=None))).text
    assert "± is a 95% confidence interval" in shown
    assert "The grey band is pointwise: each point" in shown
    assert "±" not in without
    assert "The grey band is pointwise: each point" not in without
    both = replace(before, summary_source=None)
    without = text_of(both, both)
    assert "The grey band is pointwise: each point" not in without
    assert "±" not in without


def test_a_regression_page_explains_continuous_outcomes():
    rng = np.random.default_rng(0)
    p = rng.normal(-5, 1, 500)
    data = {"g": rng.choice(["a", "b"], 500), "outcome": p + rng.normal(0, 1, 500), "prediction": p}
    page = Reader(render(audit(data, task="regression"))).text
    assert "if the mean outcome of its rows with a given score equals that score, and likewise for every score" in page
    assert "the reverse if the expected is negative" in page
    assert not any(words in page for words in ("are positive", "±", "Brier"))


def test_the_reproducing_call_names_user_defined_segments():
    data = loans(2_000)
    found = audit(data, by=["region"], segments={"it's new": data["prediction"] > 0.1})
    assert """by=['region'], segments={"it's new": ...})""" in Reader(render(found)).text
