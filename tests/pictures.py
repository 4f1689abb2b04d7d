"""Pictures of the documentation: what they show is recorded when they are made, and compared when their page is tested.

Pixels depend on fonts and on the machine. What is compared are the numbers and the texts of a figure, and the texts and the
style of a page. ``python bench/screens.py`` makes pictures and records.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import html
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
RECORD = PICTURES / "record.json"
IMAGE = re.compile(r"!\[([^\]]*)\]\(((?:[\w./-]*/)?pictures/([\w-]+\.\w+))\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOLERANCE = 1e-4  # of the largest number of a figure's part: far below a pixel, far above rounding


def read_record():
    """Return what was recorded for each picture, by its name."""
    return json.loads(RECORD.read_text())


def images(page):
    """Return the alternative text and the file name of each picture of a page."""
    return [(alt, name) for alt, _, name in IMAGE.findall(page.read_text())]


def blocks(page):
    """Return the fenced blocks of a page as pairs of language and text."""
    return BLOCK.findall(page.read_text())


# Figures.


def describe(figure):
    """Return the numbers and texts that a matplotlib figure shows, one entry per axes."""
    return [
        {"texts": _texts(ax), "shapes": [_moments(points) for points in _points(ax) if len(points)]} for ax in figure.axes
    ]


def _texts(ax):
    from matplotlib.ticker import FixedLocator

    legend = ax.get_legend()
    texts = [
        ax.get_title("left"),
        ax.get_title(),
        ax.get_xlabel(),
        ax.get_ylabel(),
        *(text.get_text() for text in ax.texts),
    ]
    for axis in (ax.xaxis, ax.yaxis):
        if isinstance(axis.get_major_locator(), FixedLocator):  # names, not positions that matplotlib chose
            texts += [label.get_text() for label in axis.get_ticklabels()]
    return [text for text in [*texts, *(text.get_text() for text in (legend.get_texts() if legend else ()))] if text]


def _points(ax):
    """Yield the vertices of each line, patch and collection of some axes, in units of the data."""
    import numpy as np

    for line in ax.lines:
        yield np.asarray(line.get_xydata(), float)
    for patch in ax.patches:
        yield patch.get_path().transformed(patch.get_patch_transform()).vertices
    for collection in ax.collections:
        offsets = np.ma.filled(np.ma.asarray(collection.get_offsets(), float), np.nan)
        paths = [path.vertices for path in collection.get_paths()]
        yield offsets if len(offsets) > 1 else np.concatenate([*paths, np.empty((0, 2))])
        if collection.get_array() is not None:  # values shown as colours
            yield np.ma.filled(np.ma.asarray(collection.get_array(), float), np.nan).reshape(-1, 1)


def _moments(points):
    """Return the number of points, and mean and root mean square of their coordinates."""
    import numpy as np

    finite = points[np.isfinite(points).all(axis=1)]
    values = [*finite.mean(axis=0), *np.sqrt((finite**2).mean(axis=0))] if len(finite) else []
    return [len(points), *(float(f"{value:.6g}") for value in values)]


def same(recorded, current):
    """Return whether two descriptions agree: texts and counts exactly, numbers up to TOLERANCE."""
    if isinstance(recorded, dict) and isinstance(current, dict):
        return recorded.keys() == current.keys() and all(same(recorded[key], current[key]) for key in recorded)
    if isinstance(recorded, list) and isinstance(current, list):
        return len(recorded) == len(current) and all(map(same, recorded, current))
    if isinstance(recorded, float) and isinstance(current, float):
        return math.isclose(recorded, current, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-2)
    return type(recorded) is type(current) and recorded == current


# Pages.


class _Text(HTMLParser):
    """Collect the text of the first element with a tag, or with a class if ``wanted`` starts with a point."""

    def __init__(self, wanted):
        super().__init__()
        self.wanted, self.tag, self.depth, self.found = wanted, None, 0, []

    def handle_starttag(self, tag, attrs):
        classes = [f".{name}" for name in (dict(attrs).get("class") or "").split()]
        if self.tag is None and self.wanted in (tag, *classes):
            self.tag = tag
        self.depth += tag == self.tag

    def handle_endtag(self, tag):
        if tag == self.tag:
            self.depth -= 1
            self.tag = self.tag if self.depth else ""  # the first such element only

    def handle_data(self, data):
        if self.depth and data.strip():
            self.found.append(" ".join(data.split()))


def shown(path, part):
    """Return the text of a part of a page of trueup, and a digest of the style of the page."""
    text = path.read_text()
    reader = _Text(part)
    reader.feed(text)
    style = re.sub(r"\s+", "", "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL)))
    return {"text": html.unescape(" ".join(reader.found)), "style": digest(style)}


def digest(text):
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Code of pages.


def digest_code(source):
    """Return a digest of Python code that ignores comments and layout."""
    return digest(ast.dump(ast.parse(source)))


def python_code(page):
    """Return the Python code of a page as one text."""
    return "\n".join(text for language, text in blocks(page) if language == "python")


def run_block(source, names):
    """Run a block as a notebook does; return what it prints, and the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(tree, "<page>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<page>", "eval"), names)
            if value is not None:
                output.write(f"{value!r}\n")
    return output.getvalue()


def outdated(page, directory, figures):
    """Return the pictures of a page that do not show what its code has just drawn and written.

    Parameters
    ----------
    page : Path
        The page, after its code has run.
    directory : Path
        Where it ran.
    figures : list of Figure
        The figures it left open.
    """
    record = read_record()
    mine = {name: entry for name, entry in record.items() if entry.get("page") == page.relative_to(ROOT).as_posix()}
    current = [describe(figure) for figure in figures] if any("drawn" in entry for entry in mine.values()) else []
    wrong = [
        name for name, entry in mine.items() if "drawn" in entry and not any(same(entry["drawn"], one) for one in current)
    ]
    for name, entry in mine.items():
        if "file" in entry and shown(directory / entry["file"], entry["part"]) != entry["shown"]:
            wrong.append(name)
    return sorted(wrong)
