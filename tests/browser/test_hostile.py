"""Hostile names are shown as text and break nothing."""

from __future__ import annotations

import pytest

import trueup as tu
from browser.conftest import COLUMN, HOSTILE
from browser.looks import BY_COLUMN, FIND, assert_empty, names, opened, sticking_out, toggle, unfold
from trueup.audits.text import shorten

TAGS = """
const counts = {};
for (const one of document.querySelectorAll("*")) { counts[one.tagName] = (counts[one.tagName] || 0) + 1; }
return counts;
"""


@pytest.fixture
def page(browser, wild_page):
    with browser.page(wild_page) as page:
        unfold(page)
        yield page
        assert page.dialogs == []
        assert page.errors == []


def test_hostile_names_are_shown_as_text(page, wild):
    segments = [wild.finding(at).segment for at in range(wild.tested)]
    shown = page.do("return [...document.querySelectorAll('#segments th[scope=row] bdi')].map(one => one.textContent);")
    assert shown == [shorten(segment, 90) for segment in segments]
    for value in HOSTILE:
        assert any(value in segment for segment in segments)
        assert shorten(f"{COLUMN}={value}", 90) in shown


def test_the_title_is_escaped(page):
    assert page.do("return document.title;") == HOSTILE[1]


def test_hostile_names_create_no_elements(browser, page, tame_page):
    with browser.page(tame_page) as other:
        assert page.do(TAGS) == other.do(TAGS)


def test_hostile_names_create_no_active_attributes(page):
    acting = page.do(
        "return [...document.querySelectorAll('*')].flatMap(one => [...one.attributes]).filter(one => "
        "/^on/.test(one.name) || (/^(href|src|action)$/.test(one.name) && /^javascript:/i.test(one.value))).map(one => one.name);"
    )
    assert acting == []


def test_opening_hostile_segments_runs_no_script(browser, page, tame_page):
    page.do("document.querySelectorAll('.row-toggle').forEach(one => one.click());")
    page.settle()
    with browser.page(tame_page) as other:
        other.do("document.querySelectorAll('.row-toggle').forEach(one => one.click());")
        assert page.do(TAGS) == other.do(TAGS)


def test_a_name_of_ten_thousand_characters_keeps_the_layout(page):
    for width in (1280, 390):
        page.size(width)
        page.settle()
        assert_empty(sticking_out(page, width))
        tallest = page.do(
            "return Math.max(...[...document.querySelectorAll('#segments tbody tr')].map(one => one.getBoundingClientRect().height));"
        )
        assert tallest < 300
    page.size(1280)
    widest = page.do(
        "return Math.max(...[...document.querySelectorAll('select, option, button, label')].map(one => one.getBoundingClientRect().width));"
    )
    assert widest < 1280


def test_right_to_left_text_is_isolated(page):
    ways = page.do(
        "return [...document.querySelectorAll('#segments th[scope=row] bdi')].map(one => getComputedStyle(one).unicodeBidi);"
    )
    assert set(ways) == {"isolate"}


def test_search_and_column_filters_accept_hostile_names(page, wild):
    page.type(FIND, "<script>alert(1)")
    wanted = [wild.finding(at).segment for at in range(wild.tested) if "<script>alert(1)" in wild.finding(at).segment]
    assert len(names(page)) == len(wanted) > 0
    page.type(FIND, "=")
    listed = page.do("return [...document.querySelector(given[0]).options].map(one => one.text.trim());", BY_COLUMN)
    assert any(text.startswith(COLUMN[:20]) for text in listed)
    page.do(
        "const list = document.querySelector(given[0]); list.selectedIndex = 1; list.dispatchEvent(new Event('change', {bubbles: true}));",
        BY_COLUMN,
    )
    assert 0 < len(names(page)) < wild.tested


def test_a_hostile_segment_opens_with_its_figures(page, wild):
    wanted = next(
        f for f in (wild.finding(at) for at in range(wild.tested)) if f.segment.endswith(f"{COLUMN}={HOSTILE[0]}")
    )
    button = toggle(page, wanted.segment)
    page.click(button)
    shown = opened(page, button)
    assert shown.seen
    assert f"{wanted.n:,}" in shown.text


def test_a_comparison_accepts_hostile_names(browser, wild, tame, folder):
    path = tu.report({HOSTILE[0]: wild, HOSTILE[1]: wild}, folder / "wild two.html", title=HOSTILE[2])
    plain = tu.report({"one": tame, "two": tame}, folder / "tame two.html", title="tame")
    assert tame.tested == wild.tested
    with browser.page(path) as page, browser.page(plain) as quiet:
        for one in (page, quiet):
            one.do("document.querySelectorAll('.row-toggle').forEach(one => one.click());")
        assert page.do(TAGS) == quiet.do(TAGS)
        assert page.do("return document.body.innerText.includes(given[0]);", HOSTILE[0])
        assert (page.dialogs, page.errors) == ([], [])
