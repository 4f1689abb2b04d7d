"""One browser for all tests here, and the pages that it opens: small audits of simulated rows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import trueup as tu
from browser.devtools import Browser, find_browser
from trueup.cli import main

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "\"double\" 'single' `back` <img src=x onerror=alert(3)>",
    "</title></bdi></table></svg></style><b id=stray>bold",
    "javascript:alert(4)",
    "{{7*7}} {% raw %} ${7*7}",
    "👩‍🚀 🏳️‍🌈 emoji",
    "עברית \u202eمرحبا",
    "&amp; &lt;b&gt;",
    "w" * 10_000,
)
COLUMN = "<i>col\"umn'</i>{{7*7}}</script>"


def lacking(what: str) -> None:
    """Leave the tests out where something is not installed, with the reason; in CI that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}; in CI nothing may be left out", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser():
    program = find_browser()
    if program is None:
        lacking("no browser: install chromium, or name one in TRUEUP_CHROMIUM")
    started = Browser(program)
    yield started
    started.close()


@pytest.fixture(scope="session")
def axe():
    """The text of axe-core: `make axe` installs it beside Python with npm; TRUEUP_AXE names another."""
    beside = Path(sys.prefix, "axe", "node_modules", "axe-core", "axe.min.js")
    path = Path(os.environ.get("TRUEUP_AXE") or beside)
    if not path.is_file():
        lacking(f"no axe-core at {path}: `make axe` installs it with npm, or name its axe.min.js in TRUEUP_AXE")
    return path.read_text(encoding="utf-8")


def audit(data, **settings):
    return tu.audit(data, outcome="outcome", prediction="prediction", **settings)


def loans(*, calibrated: bool = False):
    data = tu.simulate.lending(30_000, 0, calibrated=calibrated)
    del data["truth"]
    return data


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="session")
def found():
    """An audit with segments off and segments within chance."""
    return audit(loans(), by=["region", "product", "employment"], depth=2, min_rows=1500)


@pytest.fixture(scope="session")
def one(found, folder):
    return tu.report(found, folder / "one.html")


@pytest.fixture(scope="session")
def two(found, folder):
    after = audit(loans(calibrated=True), by=["region", "product", "employment"], depth=2, min_rows=1500)
    return tu.report([found, after], folder / "two.html")


@pytest.fixture(scope="session")
def credit(found, folder):
    return tu.report(found, folder / "credit.html", profile="credit")


@pytest.fixture(scope="session")
def ads(found, folder):
    return tu.report(found, folder / "ads.html", profile="ads")


@pytest.fixture(scope="session")
def health(found, folder):
    return tu.report(found, folder / "health.html", profile="health")


@pytest.fixture(scope="session")
def demo(folder):
    """The page that `trueup demo` writes."""
    path = folder / "demo.html"
    assert main(["demo", "--rows", "6000", "--output", str(path)]) == 0
    return path


def named_rows(column: str, values: tuple[str, ...]) -> dict:
    """Rows of which many are off, with given names: the numbers are the same whatever the names."""
    random = np.random.default_rng(0)
    rows = 300 * len(values)
    p = random.uniform(0.1, 0.4, rows)
    outcome = (random.random(rows) < 1.6 * p).astype(int)
    side = np.array(values, object)[random.integers(0, 2, rows)]
    return {column: np.repeat(np.array(values, object), 300), f"{column} too": side, "outcome": outcome, "prediction": p}


@pytest.fixture(scope="session")
def wild():
    """An audit whose columns and values are made to break a page."""
    return audit(named_rows(COLUMN, HOSTILE), by=[COLUMN, f"{COLUMN} too"])


@pytest.fixture(scope="session")
def tame():
    """The same numbers under names that break nothing."""
    return audit(named_rows("column", tuple("abcdefghij")), by=["column", "column too"])


@pytest.fixture(scope="session")
def wild_page(wild, folder):
    return tu.report(wild, folder / "wild ünd '#%20.html", title=HOSTILE[1])


@pytest.fixture(scope="session")
def tame_page(tame, folder):
    return tu.report(tame, folder / "tame.html", title="tame")


@pytest.fixture(scope="session")
def many():
    """An audit of a thousand segments and more."""
    random = np.random.default_rng(1)
    rows = 60_000
    p = random.uniform(0.05, 0.6, rows)
    data = {
        "shop": np.char.add("shop ", random.integers(0, 24, rows).astype(str)).astype(object),
        "product": np.char.add("product ", random.integers(0, 40, rows).astype(str)).astype(object),
        "outcome": (random.random(rows) < p).astype(int),
        "prediction": p,
    }
    return audit(data, by=["shop", "product"], min_rows=20)


@pytest.fixture(scope="session")
def many_page(many, folder):
    return tu.report(many, folder / "many.html")
