"""The page: one file, everything shown as text, written whole or not at all."""

from __future__ import annotations

import html.parser
import math
import re
from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from trueup.errors import ArgumentError
from trueup.reports.page import render

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
    """Collects what a page is made of, and whether every element is closed."""

    EMPTY = frozenset({"meta", "br", "input", "link", "img", "line", "circle", "rect", "path", "polyline"})

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


def test_the_page_begins_with_the_verdict_in_words(before, after):
    page = Reader(render(before)).text
    assert "Miscalibrated" in page
    assert before.verdict.partition(": ")[2][1:] in page
    assert "No miscalibration found" in Reader(render(after)).text


def test_a_page_of_nothing_testable_says_so():
    found = audit(loans(40), by=["region"])
    page = Reader(render(found)).text
    assert "Nothing could be tested" in page
    assert "No segment has 50 rows" in page


def test_the_page_shows_key_figures_table_notes_settings_and_definitions(before):
    page = Reader(render(before)).text
    for words in (
        "rows 20,000", f"segments tested {before.tested:,}", "worst sigma", "observed / expected, all rows", "Worst segments",
        "95% interval", "adjusted p", "would have been found with 80% power", "Settings", "How to read this", "Holm",
    ):  # fmt: skip
        assert words in page, words
    assert before.worst(1)[0].segment in page


def test_the_table_holds_the_worst_hundred_segments_worst_first():
    found = audit(loans(), by=["region", "product", "employment", "age"])
    page = render(found)
    rows = re.findall(r'<th scope="row"[^>]*><bdi>(.*?)</bdi>', page)
    assert len(rows) == 100 < found.tested
    assert rows == [
        finding.segment.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for finding in found.worst(100)
    ]
    assert f"{found.tested - 100:,} more tested segments" in page


def test_every_element_of_a_page_is_closed(before, after, hostile):
    for page in (render(before), render([before, after]), render(hostile)):
        assert Reader(page).open == []


def test_a_page_loads_nothing(before, after, hostile):
    for page in (render(before), render([before, after]), render(hostile)):
        read = Reader(page)
        assert not {"link", "img", "iframe", "object", "embed", "base", "form", "a"} & set(read.tags)
        assert not [entry for entry in read.attributes if entry[1] in ("src", "href", "xlink:href", "action", "srcset")]
        assert not re.search(r"url\(|@import|https?://", page)


def test_the_policy_of_a_page_lets_its_own_script_run_and_no_other(before):
    import base64
    import hashlib

    page = render(before)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for tag, name, value in Reader(page).attributes if tag == "meta" and "default-src" in value)
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_names_are_shown_as_text(hostile):
    page = render(hostile, title="<i>title</i>")
    read = Reader(page)
    assert read.tags.count("script") == 1
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


def test_a_name_of_ten_thousand_characters_is_cut_and_its_title_is_capped(hostile):
    page = render(hostile)
    assert max(len(word) for word in page.split()) < 2000
    titles = [value for _, name, value in Reader(page).attributes if name == "title" and "xxxx" in value]
    assert titles
    assert all(90 < len(title) <= 1000 for title in titles)


def test_every_curve_is_named_and_every_point_says_its_numbers(before):
    page = render(before)
    whole = before.overall.curve
    assert page.count('role="img"') == page.count("<title>Reliability curve of ") == 5
    first = f"predicted {whole.predicted[0]:.3g}, observed {whole.observed[0]:.3g}"
    assert first[:20] in page
    assert "<title>Reliability curve of all rows: " in page


def test_values_that_are_not_finite_are_shown_and_break_nothing(before):
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
    assert "observed/expected" not in read.text


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


def test_weights_have_a_column_only_where_there_are_weights(before):
    data = loans(2000)
    data["w"] = np.full(2000, 2.0)
    weighed = audit(data, by=["region"], weight="w")
    assert ">weight</th>" in render(weighed)
    assert ">weight</th>" not in render(before)


def test_two_audits_stand_side_by_side_as_before_and_after(before, after):
    page = Reader(render([before, after])).text
    assert f"{before.rejected} segments off before, 0 after" in page
    assert f"0 of the {before.rejected} still off, {before.rejected} no longer found off, 0 newly found off" in page
    assert "Miscalibrated" in page
    assert "No miscalibration found" in page


def test_a_mapping_names_the_audits(before, after):
    page = Reader(render({"<raw>": before, "mended": after, "again": after})).text
    assert "<raw>: all rows" in page
    assert "mended: all rows" in page


def test_a_segment_that_only_one_audit_has_is_told_apart(before):
    other = audit(loans(4000, seed=3), by=["region", "term"])
    page = Reader(render([before, other])).text
    assert "not there" in page
    assert "Settings: before" in page


def test_settings_that_are_the_same_are_shown_once(before, after):
    assert Reader(render([before, after])).text.count("least rows of a segment") == 1


def test_the_same_results_give_the_same_page(before, after):
    assert render([before, after]) == render([before, after])


@pytest.mark.parametrize("results", [[], {}, "audit", 3, [1], {"a": "b"}])
def test_a_report_of_anything_but_audits_is_refused(results, tmp_path):
    with pytest.raises(ArgumentError, match="audit"):
        tu.report(results, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_names_that_cannot_be_told_apart_are_refused(before):
    with pytest.raises(ArgumentError, match="same name"):
        render({"a\x00": before, "a\x01": before})


def test_report_returns_the_path_it_wrote(before, tmp_path):
    path = tmp_path / "audit.html"
    assert tu.report(before, str(path)) == path
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [path]


def test_a_single_audit_in_a_list_is_a_page_of_one(before):
    assert render([before]) == render(before)


def test_audits_under_different_rules_do_not_share_a_page():
    data = tu.simulate.lending(2000, 0)
    roles = {"outcome": "outcome", "prediction": "prediction", "by": ["region"]}
    with pytest.raises(ArgumentError, match="must share alpha and adjust"):
        render([tu.audit(data, **roles), tu.audit(data, **roles, alpha=0.01)])
