"""Queries of a page in the browser: the table of segments, the contrast of texts, the findings of axe."""

from __future__ import annotations

from dataclasses import dataclass

TABLE = ":is(table#segments, #segments table)"
FIND, ONLY_OFF, BY_COLUMN, LEAST_ROWS, MAP = "#find", "#only-off", "#by-column", "#least-rows", "#map"

ROWS = f"""
const seen = one => one.checkVisibility();
const rows = [...document.querySelectorAll("{TABLE} > tbody > tr")].filter(row => row.querySelector("th[scope=row]"));
const name = row => {{ const text = row.querySelector("th[scope=row] bdi"); return text.title || text.textContent; }};
"""
DETAIL = """
const detail = button => document.getElementById(button.getAttribute("aria-controls"));
"""


def unfold(page) -> None:
    """Open all folded sections."""
    page.do("document.querySelectorAll('details').forEach(one => { one.open = true; });")
    page.settle()


def names(page, *, hidden: bool = False) -> list[str]:
    """Return the segments in table order: the visible ones, or all."""
    return page.do(ROWS + "return rows.filter(row => given[0] || seen(row)).map(name);", hidden)


def column(page, heading: str) -> list[str]:
    """Return the texts under a heading, of the visible rows."""
    at = heads(page).index(heading)
    return page.do(ROWS + "return rows.filter(seen).map(row => row.cells[given[0]].innerText.trim());", at)


def heads(page) -> list[str]:
    """Return the headings of the table."""
    return page.do(
        f"return [...document.querySelectorAll('{TABLE} thead tr:last-child th')].map(head => head.innerText.replace(/[↑↓]/g, '').trim());"
    )


def head(page, heading: str) -> str:
    """Return the selector of the button that sorts by a heading."""
    return f"{TABLE} thead tr:last-child th:nth-child({heads(page).index(heading) + 1}) :is(button, [role=button])"


def sorting(page) -> dict[str, str]:
    """Return the sort direction by heading."""
    text = page.do(
        f"return [...document.querySelectorAll('{TABLE} thead tr:last-child th')].map(head => head.getAttribute('aria-sort'));"
    )
    return {text: way for text, way in zip(heads(page), text, strict=True) if way not in (None, "none")}


def toggle(page, segment: str) -> str:
    """Return the selector of the button that opens a segment."""
    page.do(
        ROWS
        + "for (const row of rows) { row.querySelector('.row-toggle').toggleAttribute('data-wanted', name(row) === given[0]); }",
        segment,
    )
    return ".row-toggle[data-wanted]"


@dataclass(frozen=True)
class Opened:
    """State of the button of a segment, and what it opens."""

    expanded: str
    seen: bool
    text: str
    drawings: int
    next: bool


def opened(page, selector: str) -> Opened:
    """Return the state of a button and of the detail row below it."""
    return Opened(
        **page.do(
            DETAIL + "const button = document.querySelector(given[0]), part = detail(button);"
            "const drawings = part ? [...part.querySelectorAll('svg')].filter(one => one.checkVisibility()) : [];"
            "return {expanded: button.getAttribute('aria-expanded'), seen: !!part && part.checkVisibility(),"
            " text: part && part.checkVisibility() ? part.innerText : '', drawings: drawings.length,"
            " next: !!part && button.closest('tr').nextElementSibling === part.closest('tr')};",
            selector,
        )
    )


def choose(page, selector: str, text: str) -> None:
    """Select an entry by its text through script: the open list lies outside the page."""
    page.do(
        "const list = document.querySelector(given[0]); const at = [...list.options].findIndex(one => one.text.trim() === given[1]);"
        "if (at < 0) { throw new Error('no entry ' + given[1]); } list.selectedIndex = at;"
        "for (const kind of ['input', 'change']) { list.dispatchEvent(new Event(kind, {bubbles: true})); }",
        selector, text,
    )  # fmt: skip
    page.settle()


def assert_empty(found: list[str]) -> None:
    """Fail with the full list, which a comparison would shorten."""
    assert not found, f"{len(found)} found:\n" + "\n".join(found[:12])


STICKING_OUT = """
const width = given[0], root = document.scrollingElement;
// What scrolls by itself holds what is in it, but not what is placed against something further out.
const around = one => getComputedStyle(one).position === "absolute" ? one.offsetParent : one.parentElement;
const held = one => {
  for (let at = around(one); at && at !== document.body; at = around(at)) { if (getComputedStyle(at).overflowX !== "visible") { return true; } }
  return false;
};
const out = [...document.body.querySelectorAll("*")].filter(one => one.checkVisibility() && one.getBoundingClientRect().right > width + 0.5 && !held(one));
const text = out.map(one => one.tagName + "#" + one.id + "." + one.getAttribute("class") + " to " + Math.round(one.getBoundingClientRect().right));
root.scrollLeft = 1e6;
if (root.scrollLeft > 0 || root.scrollWidth > width || innerWidth > width) { text.push("the page itself to " + root.scrollWidth); }
root.scrollLeft = 0;
return text;
"""


def sticking_out(page, width: int) -> list[str]:
    """List elements wider than the window that do not scroll by themselves, including the page."""
    return page.do(STICKING_OUT, width)


# Contrast as in WCAG 2.2: relative luminance of what is written and of what lies behind it, mixed by their opacity. axe leaves
# texts in drawings out; here they count too, against the last shape drawn behind them.
CONTRAST = """
const parse = text => {
  const parts = (text.match(/-?[\\d.]+(e-?\\d+)?/g) || []).map(Number);
  if (text.startsWith("color(srgb")) { return [...parts.slice(0, 3).map(x => 255 * x), parts[3] ?? 1]; }
  if (text.startsWith("rgb")) { return [...parts.slice(0, 3), parts[3] ?? 1]; }
  if (text === "transparent" || text === "none") { return [0, 0, 0, 0]; }
  throw new Error("a colour that is not understood: " + text);
};
const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
const light = colour => {
  const [r, g, b] = colour.map(x => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
const behind = one => {
  if (!one) { return [255, 255, 255, 1]; }
  const style = getComputedStyle(one), own = parse(style.backgroundColor);
  return own[3] === 1 ? own : over(own, behind(one.parentElement));
};
const shapes = one => {
  const svg = one.closest("svg"), box = one.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  let under = behind(svg.parentElement);
  for (const shape of svg.querySelectorAll("rect, circle, path")) {
    if (!(shape.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING)) { continue; }
    const its = shape.getBoundingClientRect();
    if (x < its.left || x > its.right || y < its.top || y > its.bottom) { continue; }
    const style = getComputedStyle(shape), fill = parse(style.fill);
    under = over([...fill.slice(0, 3), fill[3] * style.fillOpacity * style.opacity], under);
  }
  return under;
};
const faint = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let looked = 0;
for (let node = walk.nextNode(); node; node = walk.nextNode()) {
  const one = node.parentElement;
  if (!node.data.trim() || one.closest("script, style, title, desc, noscript, option") || !one.checkVisibility({opacityProperty: true, visibilityProperty: true})) { continue; }
  const style = getComputedStyle(one), drawn = !!one.closest("svg"), under = drawn ? shapes(one) : behind(one);
  let shown = 1;
  for (let at = one; at; at = at.parentElement) { shown *= getComputedStyle(at).opacity; }
  const ink = parse(drawn ? style.fill : style.color), size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  const got = ratio(over([...ink.slice(0, 3), ink[3] * shown], under), under);
  looked += 1;
  if (got < (large ? 3 : 4.5)) { faint.push(got.toFixed(2) + " " + one.tagName + "." + one.getAttribute("class") + " " + node.data.trim().slice(0, 40)); }
}
"""


def faint(page) -> list[str]:
    """List texts with a contrast below 4.5, or 3 for large ones."""
    looked, found = page.do(CONTRAST + "return [looked, faint];")
    assert looked > 20
    return found


def paper(page) -> tuple[list[float], list[float], float]:
    """Return the colours of background and text, and their contrast."""
    return tuple(
        page.do(
            CONTRAST + "const under = behind(document.body), ink = parse(getComputedStyle(document.body).color);"
            "return [under, ink, ratio(ink, under)];"
        )
    )


def axe_findings(page, axe: str, *, colours: bool = False) -> list[str]:
    """Scan a page with axe-core, for colours only or for all rules, and list impact, rule and places of the findings."""
    page.do(f"if (!window.axe) {{ {axe}\n }}")
    only = {"runOnly": ["color-contrast"]} if colours else {}
    found = page.do("return await axe.run(document, given[0]);", {"resultTypes": ["violations"], **only})
    assert found["testEngine"]["name"] == "axe-core"
    return [
        f"{one['impact']} {one['id']}: {one['help']}: "
        + "; ".join(" ".join(map(str, node["target"])) for node in one["nodes"][:5])
        for one in found["violations"]
    ]
