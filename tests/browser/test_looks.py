"""Appearance of the pages: dark mode, print, accessibility."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

import trueup as tu
from browser.looks import assert_empty, axe_findings, faint, paper, sticking_out, unfold

PAGES = ("one", "two", "tolerated", "health", "wild_page")
SHEET = 688  # A4 less margins of 14 mm, in dots of 96 an inch
SHRUNK = 1.05  # a browser makes a sheet smaller where it is too wide; by so much nobody sees it
SEEN = "one.checkVisibility()"
OVERPRINTED = """
const found = [];
for (const svg of document.querySelectorAll("svg.curve")) {
  const texts = [...svg.querySelectorAll("text")].map(one => [one.textContent, one.getBoundingClientRect()]);
  texts.forEach(([text, a], at) => texts.slice(at + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left), high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    // The box of a text is higher than its letters.
    if (wide > 1 && high > 4) { found.push(text + " on " + other); }
  }));
}
return found;
"""
SCHEMES = (False, True)  # whether the reader prefers dark


def open_first(page):
    """Open everything that is folded and the first segment, so that they are checked too."""
    unfold(page)
    page.click(".row-toggle")
    assert page.do("return document.querySelector('.row-toggle').getAttribute('aria-expanded');") == "true"


def grave(findings):
    return [text for text in findings if text.startswith(("serious", "critical"))]


@pytest.fixture(params=PAGES)
def path(request):
    return request.getfixturevalue(request.param)


def test_colours_follow_the_preferred_scheme(browser, one):
    with browser.page(one) as page:
        white, black, contrast = paper(page)
        page.look(dark=True)
        dark, light, dark_contrast = paper(page)
    assert min(white[:3]) > 200 > 80 > max(black[:3])
    assert max(dark[:3]) < 80 < 200 < min(light[:3])
    assert min(contrast, dark_contrast) >= 4.5


@pytest.mark.parametrize("name", [*PAGES, "credit", "ads"])
def test_all_texts_have_enough_contrast(browser, request, name):
    with browser.page(request.getfixturevalue(name)) as page:
        open_first(page)
        for dark in SCHEMES:
            page.look(dark=dark)
            assert_empty(faint(page))


def test_the_contrast_check_detects_faint_text(browser, tmp_path):
    bad = tmp_path / "faint.html"
    words = "<p>good</p>" * 30
    bad.write_text(
        f"<!DOCTYPE html><body style='background:#fff'>{words}<p style='color:#999'>grey</p><p style='opacity:0.4'>pale</p>"
        "<div style='background:rgba(0,0,0,0.8)'>on dark</div><svg><rect width=200 height=50 fill='#036'/><text x=9 y=20>drawn</text></svg>"
    )
    with browser.page(bad) as page:
        assert [text.split(" ", 2)[2] for text in faint(page)] == ["grey", "pale", "on dark", "drawn"]


def test_axe_reports_nothing_serious(browser, axe, path):
    with browser.page(path) as page:
        open_first(page)
        for dark in SCHEMES:
            page.look(dark=dark)
            assert_empty(grave(axe_findings(page, axe, colours=dark)))  # only colours change in the dark


def test_axe_reports_nothing_serious_on_a_phone(browser, axe, one):
    with browser.page(one, width=390) as page:
        assert_empty(grave(axe_findings(page, axe)))


def test_axe_detects_a_bad_page(browser, axe, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<!DOCTYPE html><title>bad</title><input><p style='color:#ccc'>pale</p>")
    with browser.page(bad) as page:
        found = " ".join(axe_findings(page, axe))
    assert all(rule in found for rule in ("critical label", "serious color-contrast", "serious html-has-lang"))


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


@pytest.mark.parametrize(("name", "most"), [("one", 14), ("two", 14), ("wild_page", 20)])
def test_a_page_prints_on_few_sheets(browser, request, name, most):
    with browser.page(request.getfixturevalue(name)) as page:
        page.look(media="print")  # else what is printed is the screen
        pdf = page.pdf()
    assert pdf.startswith(b"%PDF-")
    assert 2 <= pages_of(pdf) <= most


@pytest.mark.parametrize("name", [*PAGES, "credit", "ads"])
def test_print_has_white_background_no_controls_and_fits_the_sheet(browser, request, name):
    with browser.page(request.getfixturevalue(name), width=SHEET, dark=True) as page:
        page.look(dark=True, media="print")
        white, _, contrast = paper(page)
        assert min(white[:3]) == 255
        assert contrast >= 12
        assert_empty(sticking_out(page, round(SHRUNK * SHEET)))
        folded = "return [...document.querySelectorAll('.folded')].filter(one => !one.checkVisibility()).length;"
        assert page.do(folded) == 0  # print shows what is folded on the screen
        shown = "return [...document.querySelectorAll('input, select')].filter(one => one.checkVisibility()).length;"
        assert page.do(shown) == 0
        assert_empty(faint(page))


def test_print_states_its_number_of_rows_and_hides_screen_only_texts(browser, many_page):
    with browser.page(many_page) as page:
        unfold(page)
        lead = "return document.querySelector('#all-segments .lead').innerText;"
        assert "open its curve" in page.do(lead)
        assert "printed" not in page.do(lead)
        page.look(media="print")
        assert "The worst 100 are printed" in page.do(lead)
        assert not page.do(f"return [...document.querySelectorAll('.only-js')].filter(one => {SEEN}).length;")
        rows = f"return [...document.querySelectorAll('#segments > tbody > tr')].filter(one => {SEEN}).length;"
        assert page.do(rows) == 100
        page.look()
        page.type("#find", "shop 2")
        page.look(media="print")
        assert page.do(rows) > 100  # what was chosen is printed whole
        assert "printed" not in page.do(lead)


def test_intervals_stay_on_one_line_in_print(browser, health):
    with browser.page(health, width=SHEET) as page:
        page.look(media="print")
        high = page.do(
            "return [...document.querySelectorAll('td.interval.brief')].map(one => { const r = document.createRange(); "
            "r.selectNodeContents(one); return new Set([...r.getClientRects()].map(b => Math.round(b.top))).size; });"
        )
    assert max(high) == 1


@pytest.mark.parametrize("name", ["one", "credit", "ads", "health"])
def test_the_table_fits_1200_pixels_with_names_on_at_most_two_lines(browser, request, name):
    with browser.page(request.getfixturevalue(name), width=1200) as page:
        unfold(page)
        whole, shown = page.do(
            "const box = document.querySelector('.scroll.tall'); return [box.scrollWidth, box.clientWidth];"
        )
        high = page.do("return [...document.querySelectorAll('#segments bdi')].map(one => one.getClientRects().length);")
    assert whole <= shown
    assert max(high) <= 2


@pytest.mark.parametrize("width", [1024, 1140, 1160, 1200])
def test_the_main_problems_fit_a_laptop_with_states_and_intervals(browser, tmp_path, width):
    loans = tu.simulate.lending(20_000, seed=0)
    audit = tu.audit(
        loans, outcome="outcome", prediction="prediction", by=["product", "employment", "age"], tolerance="30%"
    )
    assert {problem.finding.state for problem in audit.problems[:3]} >= {"possibly material"}
    with browser.page(tu.report(audit, tmp_path / "audit.html"), width=width) as page:
        whole, shown = page.do(
            "const box = document.querySelector('#problems .scroll'); return [box.scrollWidth, box.clientWidth];"
        )
    assert whole <= shown


def test_tables_of_credit_fit_1200_pixels_and_lights_differ_without_colour(browser, credit):
    with browser.page(credit, width=1200) as page:
        wide = page.do(
            "return [...document.querySelectorAll('.profile .scroll')].map(one => one.scrollWidth - one.clientWidth);"
        )
        words = page.do("return [...document.querySelectorAll('.light')].map(one => one.innerText.split(' ')[0]);")
    assert max(wide) <= 0
    assert set(words) <= {"green", "amber", "red"}
    assert len(set(words)) > 1


def test_the_sign_off_block_is_printed_only(browser, credit):
    block = "return document.querySelector('#sign-off').checkVisibility();"
    with browser.page(credit, width=SHEET) as page:
        assert not page.do(block)
        page.look(media="print")
        assert page.do(block)
        last = "return [...document.querySelectorAll('main > :not(footer)')].at(-1).id;"
        assert page.do(last) == "sign-off"


@pytest.mark.parametrize("name", ["one", "health", "two"])
def test_scrollable_tables_fade_until_their_end(browser, request, name):
    with browser.page(request.getfixturevalue(name), width=390) as page:
        unfold(page)
        text = page.do(
            "return [...document.querySelectorAll('.scroll')].map(one => [one.scrollWidth - one.clientWidth > 2,"
            " getComputedStyle(one).maskImage !== 'none']);"
        )
        assert any(wide for wide, _ in text)
        assert all(wide == fades for wide, fades in text)
        page.do("document.querySelector('.scroll.tall').scrollLeft = 1e6;")
        page.settle()
        assert page.do("return getComputedStyle(document.querySelector('.scroll.tall')).maskImage;") == "none"


@pytest.mark.parametrize("width", [390, 500, 1200])
def test_texts_of_plots_do_not_overlap(browser, health, width):
    with browser.page(health, width=width) as page:
        open_first(page)
        assert_empty(page.do(OVERPRINTED))


def test_heading_levels_are_nested_and_the_language_is_declared(browser, path):
    with browser.page(path) as page:
        levels = page.do(
            "return [...document.querySelectorAll('h1, h2, h3, h4')].filter(one => one.checkVisibility()).map(one => Number(one.tagName[1]));"
        )
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
        assert page.do("return [document.documentElement.lang, document.querySelectorAll('main').length];") == ["en", 1]
