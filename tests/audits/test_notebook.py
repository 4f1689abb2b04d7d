"""What a notebook shows of an audit."""

from __future__ import annotations

import html
import html.parser
import re

import numpy as np

import trueup as tu
from trueup.audits.text import html_page

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


def test_a_notebook_shows_the_verdict_the_distinct_problems_and_all_rows():
    audit = tu.audit(tu.simulate.lending(40_000, seed=0), by=["region", "product", "employment", "age"], **ROLES)
    shown = audit._repr_html_()
    texts = Closed(shown).texts
    assert texts[0] == audit.verdict
    names = re.findall(r"<bdi>(.*?)</bdi>", shown)
    assert [html.unescape(name) for name in names] == [problem.finding.segment for problem in audit.problems]
    assert names[-1] == "all rows"  # one of the problems
    assert shown.count("(rejected)") == len(audit.problems) == 5


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
    assert "<ul>" not in html_page("title", ("segment", "rows"), [("all rows", "10")], [False], [])
    assert "<ul><li>a note</li></ul>" in html_page("title", ("segment", "rows"), [("all rows", "10")], [False], ["a note"])
