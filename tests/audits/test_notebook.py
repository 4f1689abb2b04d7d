"""What a notebook shows of an audit."""

from __future__ import annotations

import html
import html.parser
import re

import numpy as np

import trueup as tu

ROLES = {"outcome": "outcome", "prediction": "prediction"}


class Closed(html.parser.HTMLParser):
    """Makes sure that every element is closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "b", "bdi", "ul", "li"}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_a_notebook_shows_the_verdict_and_the_worst_ten_segments():
    audit = tu.audit(tu.simulate.lending(20_000, seed=1), by=["region", "product"], **ROLES)
    shown = audit._repr_html_()
    texts = Closed(shown).texts
    assert texts[0] == audit.verdict
    names = re.findall(r"<bdi>(.*?)</bdi>", shown)
    assert [html.unescape(name) for name in names] == [finding.segment for finding in audit.worst(10)]
    assert shown.count("(rejected)") == audit.rejected == 6


def test_names_are_escaped_in_a_notebook():
    random = np.random.default_rng(0)
    p = random.random(300)
    names = ["<script>alert(1)</script>", '"><img src=x>', "x" * 10_000]
    data = {"prediction": p, "outcome": (random.random(300) < p).astype(float), "a&b": [names[k % 3] for k in range(300)]}
    shown = tu.audit(data, by=["a&b"], **ROLES)._repr_html_()
    texts = Closed(shown).texts
    assert "a&b=<script>alert(1)</script>" in "".join(texts)
    assert len(shown) < 20_000


def test_without_notes_there_is_no_empty_list():
    audit = tu.audit(tu.simulate.lending(20_000, seed=1), by=["product"], **ROLES)
    assert audit.miscalibrated
    assert "<ul>" not in audit._repr_html_()
