"""Make the pictures of README.md and docs/, and record what they show.

    python bench/screens.py [pages] [guides] [concepts] [gallery]

- pages: the first screens of pages of `acs_employment_ma` (see `cases`) and of the demonstration, docs/pictures/page-*.png
- guides: the figures that the code of README.md and of the guides draws, and the pages that it writes
- concepts: bench/concepts.py
- gallery: the outputs and figures in docs/gallery/*.md, on the files in `cases.DATA`, and docs/gallery/reports/

Without arguments, all. Pages need a chromium. What a picture shows is recorded in docs/pictures/record.json, with which the
tests compare what the code draws now (tests/pictures.py).
"""

from __future__ import annotations

import base64
import contextlib
import csv
import doctest
import html
import io
import json
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from PIL import Image

import concepts
import trueup as tu
from cases import DATA
from pages import figures
from trueup.cli import main
from trueup.reports.figures.style import COLOURS, style_axes

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import pictures as checks  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PICTURES, GALLERY = checks.PICTURES, checks.DOCS / "gallery"
REPORTS = GALLERY / "reports"
AUDIT = [
    "--outcome", "employed", "--prediction", "predicted_probability", "--by", "RAC1P,SEX,AGEP,SCHL,DIS,MAR,year", "--quiet",
]  # fmt: skip
TOLERANT = ["audit", str(DATA / "acs_employment_ma.parquet"), *AUDIT, "--tolerance", "10%", "-o", "acs10.html"]
PLAIN = ["audit", str(DATA / "acs_employment_ma.parquet"), *AUDIT, "-o", "acs.html"]
TERMINAL = ["audit", "loans.csv", "--outcome", "outcome", "--prediction", "prediction", "--tolerance", "10%"]
PAGES = {  # pictures of pages that the code of a guide writes: page, file, part, width
    "front.png": ("README.md", "audit.html", "header", 1160),
    "guide-quickstart.png": ("docs/quickstart.md", "from-python.html", "header", 1160),
    "guide-profiles.png": ("docs/profiles.md", "credit.html", ".profile", 1340),
    "guide-watch.png": ("docs/watch.md", "watch.html", "header", 1160),
}
COLORS, DPI, MAX_COLUMNS = 96, 130, 132
COMMAND, OUTPUT = "#7fd1ae", "#e8ecf1"  # of a terminal


# Files.


def keep_png(name: str, data: bytes | io.BytesIO) -> None:
    """Write a picture with a palette of few colours, which makes it a third as large."""
    image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data).convert("RGB")
    path = PICTURES / name
    image.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"wrote docs/pictures/{name} ({path.stat().st_size / 1e3:.0f} kB)", flush=True)


def keep_figure(name: str, figure: Any) -> dict[str, Any]:
    """Write a figure; return what it shows."""
    data = io.BytesIO()
    figure.savefig(data, dpi=DPI, format="png", bbox_inches="tight")
    keep_png(name, data)
    return {"drawn": checks.describe(figure)}


def record(entries: dict[str, dict[str, Any]]) -> None:
    """Add what pictures show to the record, and drop pictures that are gone."""
    known = {**(checks.read_record() if checks.RECORD.exists() else {}), **entries}
    known = {name: known[name] for name in sorted(known) if name.endswith(".md") or (PICTURES / name).exists()}
    lines = [f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in known.items()]
    checks.RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Change to a folder, and close all figures at the end."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings(), mpl.rc_context():
            yield
    finally:
        os.chdir(before)
        plt.close("all")


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Start a browser."""
    from browser.devtools import Browser, find_browser

    program = find_browser()
    if program is None:
        raise SystemExit("no browser: install chromium, or name one in TRUEUP_CHROMIUM")
    browser = Browser(program)
    try:
        yield browser
    finally:
        browser.close()


def keep(page: Any, name: str, first: str, last: str) -> None:
    """Keep a picture from the top of one part of the page to the foot of another."""
    top, bottom, width = page.do(
        "const place = text => document.querySelector(text).getBoundingClientRect();"
        "return [place(given[0]).top + scrollY - 28, place(given[1]).bottom + scrollY + 28, innerWidth];",
        first, last,
    )  # fmt: skip
    clip = {"x": 0, "y": max(top, 0), "width": width, "height": bottom - max(top, 0), "scale": 1}
    data = page.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
    keep_png(name, base64.b64decode(data))


def command(words: list[str]) -> str:
    """Run a command of trueup; return what it prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        done = main(words)
    if done != 0:
        raise SystemExit(f"trueup {' '.join(words)} ended with {done}")
    return output.getvalue()


# Pages of real data and of the demonstration.


def make_pages() -> None:
    """Take pictures of the pages for docs/read-the-report.md."""
    with tempfile.TemporaryDirectory() as name, working_in(Path(name)), open_browser() as browser:
        folder = Path(name)
        for words in (PLAIN, TOLERANT, ["demo"]):
            command(words)
        with browser.page(folder / "acs10.html", width=1200) as page:
            keep(page, "page-tolerance.png", "body", "header")
            keep(page, "page-whole.png", "#whole", "#where")
        with browser.page(folder / "acs.html", width=1200) as page:
            keep(page, "page-audit.png", "body", "header")
            page.do("document.querySelector('#all-segments').open = true;")
            page.type("#find", "MAR=")
            page.do("[...document.querySelectorAll('.row-toggle')].find(one => one.checkVisibility()).click();")
            page.settle()
            keep(page, "page-segments.png", "section:has(#map)", "#segments tr.detail")
        with browser.page(folder / "acs10.html", width=1200, dark=True) as page:
            keep(page, "page-dark.png", "body", "header")
        with browser.page(folder / "acs10.html", width=390, height=844) as page:
            keep(page, "page-phone.png", "body", ".figures")
        with browser.page(folder / "trueup-demo.html", width=1200) as page:
            keep(page, "page-compared.png", "body", "#wholes")
        record({
            "page-audit.png": {"command": "PLAIN", "shown": checks.shown(folder / "acs.html", "header")},
            "page-tolerance.png": {"command": "TOLERANT", "shown": checks.shown(folder / "acs10.html", "header")},
        })  # fmt: skip


# Guides.


def run_examples(text: str, names: dict[str, Any]) -> None:
    """Run the doctest examples of a text."""
    with contextlib.redirect_stdout(io.StringIO()):
        for example in doctest.DocTestParser().get_examples(text):
            exec(compile(example.source, "<page>", "single"), names)


def make_guides() -> None:
    """Take pictures of what the code of README.md and of the guides draws and writes."""
    entries = {}
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        for path in (ROOT / "README.md", *sorted(checks.DOCS.glob("*.md"))):
            page = path.relative_to(ROOT).as_posix()
            screens = {name: entry[1:] for name, entry in PAGES.items() if entry[0] == page}
            text, done = path.read_text(), 0
            drawn = [found for found in checks.IMAGE.finditer(text)
                     if re.match(r"guide-.*png", found[3]) and found[3] not in (*PAGES, *CHARTS)]  # fmt: skip
            if not drawn and not screens:
                continue
            names: dict[str, Any] = {"__name__": "__main__"}
            with working_in(Path(folder)):
                for found in drawn:
                    run_examples(text[done : found.start()], names)
                    done = found.start()
                    entries[found[3]] = {"page": page, **keep_figure(found[3], plt.gcf())}
                if screens:
                    run_examples(text[done:], names)
            for name, (file, part, width) in screens.items():
                with browser.page(Path(folder) / file, width=width) as shown:
                    keep(shown, name, "body" if part == "header" else part, part)
                entries[name] = {
                    "page": page, "file": file, "part": part, "shown": checks.shown(Path(folder) / file, part),
                }  # fmt: skip
    for name, draw in CHARTS.items():
        entries[name] = keep_figure(name, draw())
        plt.close("all")
    with tempfile.TemporaryDirectory() as folder, working_in(Path(folder)):
        lines = print_audit()
    path = PICTURES / "guide-command-line.svg"
    path.write_text(terminal(lines))
    print(f"wrote docs/pictures/{path.name} ({path.stat().st_size / 1e3:.0f} kB)")
    record({**entries, path.name: {"lines": lines}})


def print_audit() -> list[str]:
    """Return the lines of a terminal in which a file of loans is audited."""
    loans = tu.simulate.lending(20_000, seed=0)
    columns = ["region", "product", "employment", "age", "income", "prediction", "outcome"]
    with Path("loans.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*(loans[column] for column in columns), strict=True))
    return [f"$ trueup {' '.join(TERMINAL)}", *command(TERMINAL).rstrip().split("\n")]


def terminal(lines: list[str]) -> str:
    """Draw lines of a terminal as SVG: their text can be searched and selected."""
    rows = [line[start : start + MAX_COLUMNS] for line in lines for start in range(0, len(line) or 1, MAX_COLUMNS)]
    width, height, step = 7.25 * max(map(len, rows)) + 36, 19 * len(rows) + 32, 19
    texts = "\n".join(
        f'<text x="18" y="{30 + step * at}" fill="{COMMAND if row.startswith("$") else OUTPUT}">{html.escape(row)}</text>'
        for at, row in enumerate(rows)
        if row
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">\n'
        '<style>text { font: 12px "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre }</style>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#1d2430"/>\n{texts}\n</svg>\n'
    )


def draw_sizing() -> Any:
    """Draw the measured time and memory of audits and fits against the number of rows."""
    found = figures("sizing")
    figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.3), layout="constrained")
    for what, columns, colour, style in (
        ("audit", 2, COLOURS[0], ":"), ("audit", 8, COLOURS[0], "-"),
        ("fit", 3, COLOURS[1], ":"), ("fit", 8, COLOURS[1], "-"),
    ):  # fmt: skip
        runs = [run for run in found[what] if run["columns"] == columns]
        rows = [run["million_rows"] for run in runs]
        for ax, values in zip(
            axes, ([run["seconds"] for run in runs], [run["peak_bytes"] / 1e9 for run in runs]), strict=True
        ):
            ax.plot(rows, values, style, marker="o", color=colour, label=f"{what}, {columns} columns")
    for ax, title, unit in zip(axes, ("Time", "Peak memory"), ("seconds", "GB"), strict=True):
        style_axes(ax, title, "million rows", unit)
        ax.set(ylim=(0, None), xlim=(0, None))
    axes[0].legend(frameon=False, fontsize=9)
    return figure


def draw_cluster() -> Any:
    """Draw the measured time of an audit by the number of partitions, on Dask, on Spark and in memory."""
    found = figures("cluster")
    figure, ax = plt.subplots(figsize=(6.2, 3.3), layout="constrained")
    for name, colour, marker in (("spark", COLOURS[1], "s"), ("dask", COLOURS[0], "o")):
        runs = found[name]["audits"]
        ax.plot(
            range(len(runs)),
            [run["seconds"] for run in runs.values()],
            color=colour,
            marker=marker,
            label=name.capitalize(),
        )
        ax.set_xticks(range(len(runs)), list(runs))
    ax.axhline(found["memory"]["audit"], color="#666666", linestyle="--", label="in memory")
    style_axes(ax, f"Audit of {found['rows'] / 1e6:g} million rows, {found['columns']} columns", "partitions", "seconds")
    ax.set_ylim(0, None)
    ax.legend(frameon=False, fontsize=9)
    return figure


CHARTS: dict[str, Callable[[], Any]] = {"guide-sizing.png": draw_sizing, "guide-cluster.png": draw_cluster}


# Concepts and gallery.


def make_concepts() -> None:
    """Draw the pictures of docs/concepts.md."""
    concepts.main()
    code = checks.digest_code(Path(concepts.__file__).read_text())
    record({path.name: {"code": code} for path in PICTURES.glob("concept-*.svg")})


def make_gallery(only: Sequence[str] = ()) -> None:
    """Run the pages of the gallery on the real data; write their outputs, pictures and reports."""
    REPORTS.mkdir(exist_ok=True)
    os.environ["TRUEUP_DATA"] = str(DATA)
    for path in sorted(GALLERY.glob("*.md")):
        if path.stem == "index" or (only and path.stem not in only):
            continue
        with working_in(REPORTS):
            text, entries = run_page(path.read_text())
        path.write_text(text)
        entry = {"code": checks.digest_code(checks.python_code(path))}
        record({f"gallery/{path.name}": entry, **entries})
        print(f"ran docs/gallery/{path.name}", flush=True)


def run_page(text: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Run the Python blocks of a page; return it with their output in the blocks of text that follow, and its pictures."""
    names: dict[str, Any] = {"__name__": "__main__"}
    entries = {}
    parts = re.split(r"(^```python\n.*?^```\n)", text, flags=re.MULTILINE | re.DOTALL)
    for at in range(1, len(parts), 2):
        output = checks.run_block(parts[at].removeprefix("```python\n").removesuffix("```\n"), names)
        after = re.sub(r"\A\n*```text\n.*?^```\n", "", parts[at + 1], flags=re.MULTILINE | re.DOTALL)
        parts[at + 1] = (f"\n```text\n{output.rstrip()}\n```\n" if output.strip() else "") + after
        for found in checks.IMAGE.finditer(after):
            entries[found[3]] = keep_figure(found[3], plt.gcf())
    return "".join(parts), entries


MAKERS: dict[str, Callable[[], None]] = {
    "pages": make_pages, "guides": make_guides, "concepts": make_concepts, "gallery": make_gallery,
}  # fmt: skip

if __name__ == "__main__":
    mpl.use("Agg")
    asked = sys.argv[1:] or list(MAKERS)
    for name in asked:
        if name in MAKERS:
            MAKERS[name]()
        elif (GALLERY / f"{name}.md").exists():
            make_gallery([name])
        else:
            raise SystemExit(f"no pictures named {name}; there are {', '.join(MAKERS)}")
