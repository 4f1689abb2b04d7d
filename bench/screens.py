"""Take pictures of the pages for docs/read-the-report.md: a real model's scores, and the demonstration.

    python bench/screens.py

Needs a chromium, and the data of `acs_employment_ma` (see `cases`). They go to docs/pictures/page-*.png.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cases import DATA
from trueup.cli import main

HERE = Path(__file__).resolve().parent
PICTURES = HERE.parent / "docs" / "pictures"
sys.path.insert(0, str(HERE.parent / "tests"))

if TYPE_CHECKING:
    from collections.abc import Sequence

AUDIT = [
    "--outcome",
    "employed",
    "--prediction",
    "predicted_probability",
    "--by",
    "RAC1P,SEX,AGEP,SCHL,DIS,MAR,year",
    "--quiet",
]
OUTPUTS = (["-o", "acs.html"], ["--tolerance", "10%", "-o", "acs10.html"])


def make_pages(folder: Path) -> None:
    """Write the pages as a user does, in an empty folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        audits = [["audit", str(DATA / "acs_employment_ma.parquet"), *AUDIT, *output] for output in OUTPUTS]
        for words in (*audits, ["demo"]):
            with contextlib.redirect_stdout(io.StringIO()):
                done = main(words)
            if done != 0:
                raise SystemExit(f"trueup {' '.join(words)} ended with {done}")
    finally:
        os.chdir(before)


def keep(page: Any, name: str, first: str, last: str) -> None:
    """Keep a picture from the top of one part of the page to the foot of another."""
    top, bottom, width = page.do(
        "const place = text => document.querySelector(text).getBoundingClientRect();"
        "return [place(given[0]).top + scrollY - 28, place(given[1]).bottom + scrollY + 28, innerWidth];",
        first, last,
    )  # fmt: skip
    clip = {"x": 0, "y": max(top, 0), "width": width, "height": bottom - max(top, 0), "scale": 1}
    data = page.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
    path = PICTURES / f"page-{name}.png"
    path.write_bytes(base64.b64decode(data))
    print(f"wrote docs/pictures/{path.name} ({path.stat().st_size / 1e3:.0f} kB)")


def take(browser: Any, folder: Path) -> None:
    """Open the pages and keep what is worth seeing."""
    with browser.page(folder / "acs10.html", width=1200) as page:
        keep(page, "tolerance", "body", "header")
        keep(page, "whole", "#whole", "#where")
    with browser.page(folder / "acs.html", width=1200) as page:
        keep(page, "audit", "body", "header")
        page.do("document.querySelector('#all-segments').open = true;")
        page.type("#find", "MAR=")
        page.do("[...document.querySelectorAll('.row-toggle')].find(one => one.checkVisibility()).click();")
        page.settle()
        keep(page, "segments", "section:has(#map)", "#segments tr.detail")
    with browser.page(folder / "acs10.html", width=1200, dark=True) as page:
        keep(page, "dark", "body", "header")
    with browser.page(folder / "acs10.html", width=390, height=844) as page:
        keep(page, "phone", "body", ".figures")
    with browser.page(folder / "trueup-demo.html", width=1200) as page:
        keep(page, "compared", "body", "#wholes")


def run(_: Sequence[str] = ()) -> None:
    from browser.devtools import Browser, find_browser

    program = find_browser()
    if program is None:
        raise SystemExit("no browser: install chromium, or name one in TRUEUP_CHROMIUM")
    with tempfile.TemporaryDirectory() as folder:
        make_pages(Path(folder))
        browser = Browser(program)
        try:
            take(browser, Path(folder))
        finally:
            browser.close()


if __name__ == "__main__":
    run()
