"""The table of segments: sorting, search, filters, details."""

from __future__ import annotations

import numpy as np
import pytest

import trueup as tu
from browser.looks import (
    BY_COLUMN,
    FIND,
    LEAST_ROWS,
    ONLY_OFF,
    choose,
    column,
    head,
    names,
    opened,
    sorting,
    toggle,
    unfold,
)


@pytest.fixture
def page(browser, one):
    with browser.page(one) as page:
        unfold(page)
        yield page
        assert page.errors == []


@pytest.fixture(scope="module")
def findings(found):
    return [found.finding(at) for at in range(found.tested)]


def whole(texts):
    return [int(text.replace(",", "")) for text in texts]


def test_the_table_has_all_tested_segments_worst_first(page, findings):
    assert names(page) == [finding.segment for finding in findings]
    assert whole(column(page, "rows")) == [finding.n for finding in findings]


def test_clicking_a_heading_sorts_and_clicking_again_reverses(page, findings):
    first = names(page)
    page.click(head(page, "rows"))
    assert sorting(page) == {"rows": "descending"}
    assert whole(column(page, "rows")) == sorted((finding.n for finding in findings), reverse=True)
    assert sorted(names(page)) == sorted(first)
    assert names(page) != first
    page.click(head(page, "rows"))
    assert sorting(page) == {"rows": "ascending"}
    assert whole(column(page, "rows")) == sorted(finding.n for finding in findings)


def test_numbers_are_sorted_by_value(page, findings):
    page.click(head(page, "excess"))
    sizes = {finding.segment: finding.excess for finding in findings}
    assert [sizes[name] for name in names(page)] == sorted(sizes.values(), reverse=True)


@pytest.mark.parametrize("key", ["Enter", " "])
def test_headings_sort_by_keyboard(page, key):
    page.do("document.querySelector(given[0]).focus();", head(page, "segment"))
    page.press(key)
    assert sorting(page) == {"segment": "ascending"}
    assert names(page) == sorted(names(page), key=str.lower)
    assert page.do("return document.activeElement === document.querySelector(given[0]);", head(page, "segment"))


def test_search_filters_and_counts_segments(page, findings):
    wanted = [finding.segment for finding in findings if "harbour" in finding.segment]
    page.type(FIND, "HARBour")
    assert names(page) == wanted
    assert f"{len(wanted)} of {len(findings)}" in page.do("return document.querySelector('#shown').innerText;")
    page.type(FIND, "no such segment")
    assert names(page) == []
    assert f"0 of {len(findings)}" in page.do("return document.querySelector('#shown').innerText;")
    page.type(FIND, " ")
    page.press("Escape")
    assert len(names(page)) == len(findings)


def test_only_miscalibrated_segments_can_be_shown(page, found):
    page.click(ONLY_OFF)
    assert names(page) == [finding.segment for finding in found.worst(found.rejected)]
    page.click(ONLY_OFF)
    assert len(names(page)) == found.tested


def test_segments_can_be_filtered_by_column(page, findings):
    choose(page, BY_COLUMN, "product")
    assert names(page) == [finding.segment for finding in findings if "product" in finding.segment]
    page.click("#reset")
    assert len(names(page)) == len(findings)
    assert not page.do("return document.querySelector('#reset').checkVisibility();")


def test_a_map_cell_toggles_a_filter_by_its_columns_and_unfolds_the_table(page, findings):
    page.do("document.querySelector('#all-segments').open = false;")
    both = [f.segment for f in findings if "region" in f.segment and "employment" in f.segment]
    cell = "#map tbody tr:nth-child(3) td:nth-of-type(1) .map-cell"  # the third column against the first
    page.click(cell)
    assert page.do("return document.querySelector(given[0]).getAttribute('aria-pressed');", cell) == "true"
    assert names(page) == both
    page.click(cell)
    assert len(names(page)) == len(findings)


def test_segments_can_be_filtered_by_rows(page, findings):
    page.type(LEAST_ROWS, "700")
    assert names(page) == [finding.segment for finding in findings if finding.n >= 700]


def test_filters_combine_and_survive_sorting(page, findings, found):
    page.click(ONLY_OFF)
    page.type(FIND, "region=")
    off = {finding.segment for finding in found.worst(found.rejected)}
    wanted = {finding.segment: finding.n for finding in findings if finding.segment in off and "region=" in finding.segment}
    assert names(page) == list(wanted)
    page.click(head(page, "rows"))
    assert set(names(page)) == set(wanted)
    assert whole(column(page, "rows")) == sorted(wanted.values(), reverse=True)


def assert_details(finding, shown):
    """Assert that the details show the figures and the curve of the segment."""
    assert (shown.expanded, shown.seen, shown.next) == ("true", True, True)
    counts = (f"{finding.n:,}", f"{finding.n * finding.observed:,.0f}", f"{finding.observed:.4g}", f"{finding.ratio:.3g}")
    assert all(count in shown.text for count in counts), (counts, shown.text)
    assert shown.drawings >= 1


def test_clicking_opens_and_closes_a_segment(page, findings):
    wanted = findings[3]
    button = toggle(page, wanted.segment)
    closed = opened(page, button)
    assert (closed.expanded, closed.seen) == ("false", False)
    page.click(button)
    assert_details(wanted, opened(page, button))
    page.click(button)
    closed = opened(page, button)
    assert (closed.expanded, closed.seen) == ("false", False)


def test_segments_open_by_keyboard(page, findings):
    page.do("document.querySelector(given[0]).focus();", FIND)
    for _ in range(60):
        page.press("Tab")
        if page.do("return document.activeElement.matches('.row-toggle');"):
            break
    else:
        pytest.fail("no button of a row is reached by the tabulator")
    outline = page.do(
        "const style = getComputedStyle(document.activeElement); return [style.outlineStyle, style.boxShadow];"
    )
    assert outline != ["none", "none"]
    button = toggle(page, findings[0].segment)
    assert page.do("return document.activeElement === document.querySelector(given[0]);", button)
    page.press("Enter")
    assert_details(findings[0], opened(page, button))
    page.press("Enter")
    assert opened(page, button).expanded == "false"
    page.press(" ")
    assert_details(findings[0], opened(page, button))


def test_buttons_have_distinct_labels(page, findings):
    text = page.do(
        "return [...document.querySelectorAll('.row-toggle')].map(one => one.getAttribute('aria-label') || one.innerText);"
    )
    assert len(text) == len(findings)
    assert len(set(text)) == len(findings)


def test_an_open_segment_follows_its_row(page, findings):
    wanted = findings[0]
    button = toggle(page, wanted.segment)
    page.click(button)
    page.click(head(page, "rows"))
    assert_details(wanted, opened(page, button))
    page.type(FIND, "no such segment")
    assert not opened(page, button).seen


def test_a_segment_of_a_comparison_opens_with_figures_of_both_audits(browser, two, findings):
    with browser.page(two) as page:
        unfold(page)
        button = toggle(page, findings[0].segment)
        page.click(button)
        shown = opened(page, button)
        assert_details(findings[0], shown)
        assert shown.drawings >= 2
        assert "before" in shown.text
        assert "after" in shown.text
        assert page.errors == []


@pytest.mark.parametrize(("middle", "wide"), [(2021.0, 0.3), (1e20, 0.0)])
def test_large_close_values_have_distinguishable_points(browser, folder, middle, wide):
    random = np.random.default_rng(0)
    score = middle + wide * random.normal(size=600)
    data = {"g": random.choice(["a", "b"], 600), "y": score + wide * random.normal(size=600), "p": score}
    found = tu.audit(data, outcome="y", prediction="p", task="regression")
    with browser.page(tu.report(found, folder / f"amounts {middle:g}.html")) as page:
        unfold(page)
        button = toggle(page, found.finding(0).segment)
        page.click(button)
        texts = page.do("return [...document.querySelectorAll('tr.detail svg text')].map(one => one.textContent);")
        marks = texts[: len(texts) - 2 : 2]  # of one axis; the last two are the names of both
        assert len(set(marks)) == len(marks) >= 3
        points = page.do("return [...document.querySelectorAll('tr.detail .point')].map(one => one.getAttribute('cx'));")
        assert len(set(points)) == len(found.finding(0).curve)
        assert page.errors == []
