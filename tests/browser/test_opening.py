"""Pages open from disk without network or errors, and can be read without scripts."""

from __future__ import annotations

import json

import pytest

import trueup as tu
from browser.looks import MAP, TABLE, assert_empty, names, sticking_out, unfold
from trueup.reports.summary import headline, lead

PAGES = ("one", "two", "demo", "credit", "ads", "health", "wild_page", "many_page")
LOADERS = "[src], link, object, embed, iframe, form, base, [background], [action]"


@pytest.fixture(params=PAGES)
def path(request):
    return request.getfixturevalue(request.param)


def test_a_page_opens_offline_without_errors_or_requests(browser, path):
    with browser.page(path) as page:
        assert page.do("return navigator.onLine;") is False
        page.settle()
        assert page.requests == [path.as_uri()]
        assert page.errors == []
        assert page.dialogs == []
        assert page.do("return performance.getEntriesByType('resource').map(one => one.name);") == []
        assert page.do(f"return [...document.querySelectorAll('{LOADERS}')].map(one => one.outerHTML.slice(0, 200));") == []


def test_errors_and_requests_of_a_bad_page_are_recorded(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><meta http-equiv=Content-Security-Policy content=\"img-src 'none'\"><title>bad</title>"
        "<link rel=stylesheet href=https://style.test/a.css><img src=https://image.test/a.png>"
        "<script>alert('dialog'); console.error('text'); setTimeout(() => { throw new Error('thrown'); });</script>"
    )
    with browser.page(bad) as page:
        page.settle()
        assert set(page.requests) == {bad.as_uri(), "https://style.test/a.css", "https://image.test/a.png"}
        assert page.dialogs == ["dialog"]
        text = "\n".join(page.errors)
        assert all(word in text for word in ("Content Security Policy", "ERR_INTERNET_DISCONNECTED", "text", "thrown"))


def test_without_scripts_verdict_and_table_are_shown_without_controls(browser, one, found):
    with browser.page(one, scripts=False) as page:
        assert page.do("return document.querySelector('h1').innerText;") == headline(found)
        assert " ".join(lead(found)) in page.do("return document.body.innerText;")
        assert names(page) == []  # folded
        page.do("document.querySelector('#all-segments > summary').click();")
        assert names(page) == [found.finding(at).segment for at in range(found.tested)]
        dead = "return [...document.querySelectorAll('input, select, button, [role=button]')].filter(one => one.checkVisibility()).length;"
        assert page.do(dead) == 0
        assert page.errors == []


def test_without_scripts_a_comparison_shows_both_verdicts(browser, two):
    with browser.page(two, scripts=False) as page:
        text = page.do("return document.body.innerText;")
        assert "Miscalibrated" in text
        assert "No miscalibration found" in text
        page.do("document.querySelector('#all-segments > summary').click();")
        assert len(names(page)) > 10


def test_a_page_of_one_audit_has_all_sections(browser, one, found):
    with browser.page(one) as page:
        folded = page.do("return [...document.querySelectorAll('details')].filter(one => one.open).map(one => one.id);")
        assert folded == []
        unfold(page)
        parts = (
            "#verdict h1",
            "#problems tbody tr:nth-child(2) .forest svg",
            "#next li",
            "#all-problems table",
            "#reliability svg .band",
            "#reliability svg .histogram rect",
            "#path svg polyline",
            MAP,
            "#scores",
            "#limits",
            "#provenance",
            "#settings",
            "#words",
        )
        missing = page.do("return given[0].filter(one => !document.querySelector(one)?.checkVisibility());", parts)
        assert missing == []
        text = page.do("return document.querySelector('#provenance').innerText;")
        assert found.summary.fingerprint[:12] in text
        assert tu.__version__ in text


def test_the_map_counts_the_miscalibrated_segments_of_each_pair_of_columns(browser, one, found):
    with browser.page(one) as page:
        texts = page.do(f"return document.querySelector('{MAP}').innerText;")
        assert all(column in texts for column in ("region", "product", "employment"))
        pairs = [f for f in (found.finding(at) for at in range(found.tested)) if " & " in f.segment]
        both = [f for f in pairs if "region" in f.segment and "product" in f.segment]
        assert f"{sum(f.p_adjusted <= 0.05 for f in both)} of {len(both)}" in texts


@pytest.mark.parametrize("name", ["one", "tolerated", "credit"])
@pytest.mark.parametrize(
    ("width", "height", "parts"),
    [
        (1280, 800, ("#verdict", "#problems", "#next", ".figures")),
        (390, 844, ("#verdict", "#problems", "#next li:first-child")),
    ],
)
def test_the_first_screen_answers_what_was_found_and_what_to_do(browser, request, name, width, height, parts):
    with browser.page(request.getfixturevalue(name), width=width, height=height) as page:
        page.settle()
        ends = page.do("return given[0].map(one => document.querySelector(one).getBoundingClientRect().bottom);", parts)
        rows = page.do("return document.querySelectorAll('#problems tbody tr').length;")
    assert max(ends) <= height
    assert 2 <= rows <= 3


def test_a_page_fits_its_window(browser, path):
    with browser.page(path, width=390) as page:
        unfold(page)
        for width in (390, 768, 1280):
            page.size(width)
            page.settle()
            assert_empty(sticking_out(page, width))


def test_a_page_that_is_too_wide_is_detected(browser, tmp_path):
    wide = tmp_path / "wide.html"
    wide.write_text("<!DOCTYPE html><meta name=viewport content='width=device-width'><div style='width:500px'>wide</div>")
    with browser.page(wide, width=390) as page:
        assert sticking_out(page, 390)[0] == "DIV#.null to 508"


def test_a_page_of_a_thousand_segments_is_under_two_megabytes_and_can_be_sorted(browser, many, many_page):
    assert many.tested >= 1000
    assert many_page.stat().st_size < 2_000_000
    with browser.page(many_page) as page:
        assert names(page) == []
        unfold(page)
        assert len(names(page)) >= 100
        page.do(f"document.querySelector('{TABLE} thead th :is(button, [role=button])').click();")
        shown = names(page)
        assert [name.lower() for name in shown] == sorted(name.lower() for name in shown)


def test_data_are_not_executable(browser, wild_page):
    with browser.page(wild_page) as page:
        blocks = page.do(
            "return [...document.querySelectorAll('script[type=\"application/json\"]')].map(one => one.textContent);"
        )
        for block in blocks:
            json.loads(block)
        assert page.do("return document.querySelectorAll('script:not([type=\"application/json\"])').length;") == 1
