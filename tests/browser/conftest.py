"""One browser for all tests, and the pages it opens: small audits of simulated rows."""

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


def skip_without(what: str) -> None:
    """Skip tests if something is not installed; fail in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}; no test may be skipped in CI", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser():
    program = find_browser()
    if program is None:
        skip_without("no browser: install chromium, or name one in TRUEUP_CHROMIUM")
    started = Browser(program)
    yield started
    started.close()


@pytest.fixture(scope="session")
def axe():
    """Return the source of axe-core, installed by `make axe` or named by TRUEUP_AXE."""
    beside = Path(sys.prefix, "axe", "node_modules", "axe-core", "axe.min.js")
    path = Path(os.environ.get("TRUEUP_AXE") or beside)
    if not path.is_file():
        skip_without(f"no axe-core at {path}: `make axe` installs it with npm, or name its axe.min.js in TRUEUP_AXE")
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
    """Audit rows with miscalibrated segments and others."""
    return audit(loans(), by=["region", "product", "employment"], depth=2, min_rows=1500)


@pytest.fixture(scope="session")
def one(found, folder):
    return tu.report(found, folder / "one.html")


@pytest.fixture(scope="session")
def tolerated(folder):
    """Write the page of an audit with a tolerance that few errors certainly exceed."""
    found = audit(loans(), by=["region", "product", "employment"], depth=2, min_rows=1500, tolerance="20%")
    return tu.report(found, folder / "tolerated.html")


@pytest.fixture(scope="session")
def two(found, folder):
    after = audit(loans(calibrated=True), by=["region", "product", "employment"], depth=2, min_rows=1500)
    return tu.report([found, after], folder / "two.html")


@pytest.fixture(scope="session")
def credit(folder):
    """Write the page with all tables at their widest: grades, vintages, exposure and reference."""
    random, data = np.random.default_rng(0), loans()
    data |= {
        "grade": np.digitize(data["prediction"], [0.01, 0.02, 0.05, 0.1, 0.2]).astype(str),
        "opened": np.datetime64("2021-01-01") + random.integers(0, 1_000, 30_000),
        "ead": random.lognormal(9, 1, 30_000),
    }
    by = ["region", "product", "grade", "opened"]
    options = {"profile": "credit", "exposure": audit(data, by=by, weight="ead", depth=1)}
    reference = audit(loans(calibrated=True), by=[])
    return tu.report(audit(data, by=by, min_rows=1500), folder / "credit.html", reference=reference, **options)


@pytest.fixture(scope="session")
def ads(found, folder):
    return tu.report(found, folder / "ads.html", profile="ads")


@pytest.fixture(scope="session")
def health(found, folder):
    return tu.report(found, folder / "health.html", profile="health")


@pytest.fixture(scope="session")
def demo(folder):
    """Write the page of `trueup demo`."""
    path = folder / "demo.html"
    assert main(["demo", "--rows", "6000", "--output", str(path)]) == 0
    return path


def named_rows(column: str, values: tuple[str, ...]) -> dict:
    """Make miscalibrated rows with these names; the numbers do not depend on the names."""
    random = np.random.default_rng(0)
    rows = 300 * len(values)
    p = random.uniform(0.1, 0.4, rows)
    outcome = (random.random(rows) < 1.6 * p).astype(int)
    side = np.array(values, object)[random.integers(0, 2, rows)]
    return {column: np.repeat(np.array(values, object), 300), f"{column} too": side, "outcome": outcome, "prediction": p}


@pytest.fixture(scope="session")
def wild():
    """Audit rows whose column and value names try to break a page."""
    return audit(named_rows(COLUMN, HOSTILE), by=[COLUMN, f"{COLUMN} too"])


@pytest.fixture(scope="session")
def tame():
    """Audit the same numbers under harmless names."""
    return audit(named_rows("column", tuple("abcdefghij")), by=["column", "column too"])


@pytest.fixture(scope="session")
def wild_page(wild, folder):
    return tu.report(wild, folder / "wild ünd '#%20.html", title=HOSTILE[1])


@pytest.fixture(scope="session")
def tame_page(tame, folder):
    return tu.report(tame, folder / "tame.html", title="tame")


@pytest.fixture(scope="session")
def many():
    """Audit more than a thousand segments."""
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
