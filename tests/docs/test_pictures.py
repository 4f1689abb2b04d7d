"""Pictures of README.md and docs/: every guide has one, they have alternative texts, are small, and show what is drawn now.

The pictures of guides are compared after the code of their page has run, in conftest.py.
"""

from __future__ import annotations

import html
import importlib
import os
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt

import trueup as tu
from pictures import (
    DOCS,
    PICTURES,
    ROOT,
    describe,
    digest_code,
    images,
    outdated,
    python_code,
    read_record,
    run_block,
    same,
    shown,
)
from trueup.errors import TrueupWarning

DATA = Path(os.environ.get("TRUEUP_DATA", ROOT.parent / "shared" / "data"))
MAX_BYTES = 100_000
RECORDED = ("front", "guide-", "gallery-", "concept-")
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
CASES = sorted(path for path in (DOCS / "gallery").glob("*.md") if path.stem != "index")
SAMPLE_ROWS = 6000


@pytest.fixture(scope="module")
def screens():
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        yield importlib.import_module("screens")
    finally:
        sys.path.remove(str(ROOT / "bench"))


def _guides():
    """Return the pages that the contents list under Start and under Guides."""
    contents = (DOCS / "index.md").read_text()
    parts = re.findall(r":caption: (?:Start|Guides)\n\n(.*?)```", contents, re.DOTALL)
    return re.findall(r"<([\w/-]+)>", "".join(parts))


@pytest.mark.parametrize("name", [name for name in _guides() if name != "gallery/index"])
def test_guides_have_a_picture(name):
    assert images(DOCS / f"{name}.md")


@pytest.mark.parametrize("page", CASES, ids=lambda page: page.stem)
def test_cases_of_the_gallery_have_a_picture_and_a_report(page):
    text = page.read_text()
    assert images(page)
    assert f"The full report (`reports/{page.stem}.html`)" in text
    assert "](reports/" not in text  # reports are not in the repository: a code host could not open a link


def test_front_pages_open_with_the_page_of_an_audit():
    for page in (ROOT / "README.md", DOCS / "index.md"):
        assert images(page)[0][1] == "front.png"
        assert page.read_text().index("front.png") < 500


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_exist_and_have_texts_that_state_what_they_show(page):
    for text, name in images(page):
        assert (PICTURES / name).is_file()
        assert len(text.split()) >= 5, f"{name}: {text!r}"


def test_pictures_are_small_and_used():
    used = {name for page in PAGES for _, name in images(page)}
    assert used == {path.name for path in PICTURES.iterdir()} - {"record.json"}
    for path in PICTURES.iterdir():
        if path.name.startswith((*RECORDED, "page-")):
            assert path.stat().st_size < MAX_BYTES, path.name


def test_pictures_and_records_belong_together():
    record = read_record()
    kept = {path.name for path in PICTURES.iterdir() if path.name.startswith(RECORDED)}
    assert kept <= set(record)
    assert all((PICTURES / name).is_file() or name.startswith("gallery/") for name in record)


def test_charts_show_the_figures_that_were_measured(screens):
    for name, draw in screens.CHARTS.items():
        assert same(read_record()[name]["drawn"], describe(draw())), f"{name}: python bench/screens.py guides"


def test_the_terminal_shows_what_the_command_prints(screens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = screens.print_audit()
    assert read_record()["guide-command-line.svg"]["lines"] == lines, "python bench/screens.py guides"
    drawn = re.findall(r"<text[^>]*>(.*?)</text>", (PICTURES / "guide-command-line.svg").read_text())
    assert html.unescape("".join(drawn)) == "".join(lines)


def test_concepts_are_drawn_by_the_code_of_today():
    code = digest_code((ROOT / "bench" / "concepts.py").read_text())
    drawn = {entry["code"] for name, entry in read_record().items() if name.startswith("concept-")}
    assert drawn == {code}, "python bench/screens.py concepts"


@pytest.mark.skipif(not (DATA / "acs_employment_ma.parquet").exists(), reason=f"no acs_employment_ma.parquet in {DATA}")
def test_pages_of_real_data_show_what_the_command_writes(screens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    screens.command(screens.TOLERANT)
    assert shown(tmp_path / "acs10.html", "header") == read_record()["page-tolerance.png"]["shown"], (
        "python bench/screens.py"
    )


# The gallery.


@pytest.mark.parametrize("page", CASES, ids=lambda page: page.stem)
def test_outputs_of_the_gallery_are_those_of_its_code(page):
    assert read_record()[f"gallery/{page.name}"]["code"] == digest_code(python_code(page)), "make gallery"


@pytest.mark.parametrize("page", CASES, ids=lambda page: page.stem)
def test_every_number_in_the_text_of_a_case_is_in_its_code_or_output(page):
    text = page.read_text()
    blocks = "".join(re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL))
    prose = re.sub(r"!\[.*?\]\(.*?\)|^```.*?^```$|`[^`]*`|\]\(.*?\)", "", text, flags=re.MULTILINE | re.DOTALL)
    numbers = {number.replace(",", "") for number in re.findall(r"\d[\d,.]*\d", prose)}
    known = {number.replace(",", "").replace("_", "") for number in re.findall(r"\d[\d,._]*\d", blocks)}
    known |= {f"{100 * float(number):g}" for number in known if re.fullmatch(r"0\.\d+", number)}
    assert {number for number in numbers if number not in known} <= ALLOWED.get(page.stem, set())


ALLOWED = {"credit": {"26"}, "classes": {"16", "10"}, "employment": {"2014"}}  # under 26; names of a network and of data


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Return a folder with some rows of every file that the gallery reads."""
    import pandas as pd

    folder = tmp_path_factory.mktemp("sample")
    for name in sorted({name for page in CASES for name in re.findall(r'"(\w+\.parquet)"', page.read_text())}):
        if not (DATA / name).exists():
            pytest.skip(f"no {name} in {DATA}")
        pd.read_parquet(DATA / name).sample(SAMPLE_ROWS, random_state=0).sort_index().to_parquet(folder / name)
    return folder


@pytest.mark.parametrize("page", CASES, ids=lambda page: page.stem)
def test_cases_of_the_gallery_run_on_a_sample(page, sample, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRUEUP_DATA", str(sample))
    names = {"__name__": "__main__"}
    parts = re.split(r"^```python\n(.*?)^```\n", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    warnings.simplefilter("ignore", TrueupWarning)  # of few rows
    for source, after in zip(parts[1::2], parts[2::2], strict=True):
        assert bool(run_block(source, names)) == after.startswith("\n```text\n"), source
        assert "pictures/" not in after.partition("```python")[0] or plt.get_fignums()
    assert (tmp_path / f"{page.stem}.html").stat().st_size > 100_000


# The comparison.


def _figure(scale=1.0, title="Loans"):
    figure, ax = plt.subplots()
    ax.plot([1, 2, 3], np.array([0.1, 0.4, 0.2]) * scale, label="line")
    ax.scatter([1, 2], [3, 4 * scale], c=[0.5, 0.7 * scale])
    ax.bar([1, 2], [1, 2 * scale])
    ax.set_title(title)
    return figure


def test_figures_are_compared_by_what_they_show():
    recorded = describe(_figure())
    assert same(recorded, describe(_figure(1 + 1e-7)))
    assert not same(recorded, describe(_figure(1.001)))
    assert not same(recorded, describe(_figure(title="Cards")))


def test_colours_of_points_are_compared():
    first, second = _figure(), _figure()
    second.axes[0].collections[0].set_array([0.5, 0.6])
    assert not same(describe(first), describe(second))


def test_a_page_that_draws_or_writes_something_else_has_outdated_pictures(tmp_path):
    loans = tu.simulate.lending(1000, seed=0)
    tu.report(tu.audit(loans, outcome="outcome", prediction="prediction", by=["region"]), tmp_path / "audit.html")
    assert outdated(ROOT / "README.md", tmp_path, []) == ["front.png"]
    assert outdated(DOCS / "fix.md", tmp_path, [_figure()]) == ["guide-fix.png", "guide-history.png"]


def test_the_text_of_a_page_is_that_of_the_first_part_of_its_kind(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(
        "<style>a{}</style><header><p>One &amp; <b>two</b></p></header><p class='x y'>three</p><header>four</header>"
    )
    assert shown(path, "header")["text"] == "One & two"
    assert shown(path, ".x")["text"] == "three"
    before = shown(path, "header")
    path.write_text(path.read_text().replace("a{}", "a{color:red}"))
    assert shown(path, "header") != before
