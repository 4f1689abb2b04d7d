"""What a notebook shows of results."""

from __future__ import annotations

import html
import html.parser
import re

import numpy as np

import trueup as tu
from trueup.calibrators.history import History
from trueup.calibrators.stopping import Evaluation
from trueup.metrics.result import html_table

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
    assert "all rows" in names  # one of the problems
    assert shown.count("<th scope=row") == shown.count('font-weight:bold"><bdi>') == len(audit.problems) == 5


def test_without_findings_a_notebook_shows_all_rows_only():
    data = tu.simulate.lending(4_000, seed=0, calibrated=True)
    shown = tu.audit(data, by=["region"], **ROLES)._repr_html_()
    assert re.findall(r"<bdi>(.*?)</bdi>", shown) == ["all rows"]
    assert "bold" not in shown


def test_with_a_tolerance_the_table_shows_states_instead_of_p_values():
    data = tu.simulate.lending(40_000, seed=0)
    audit = tu.audit(data, by=["region", "product"], tolerance="10%", **ROLES)
    texts = Closed(audit._repr_html_()).texts
    assert "state" in texts
    assert "adjusted p" not in texts
    assert "material" in texts
    assert re.search(r"region=harbour .* material\n", repr(audit))


def test_findings_and_problems_are_shown_as_tables():
    audit = tu.audit(tu.simulate.lending(40_000, seed=0), by=["region", "product", "employment", "age"], **ROLES)
    finding, problem = audit["region=harbour"], audit.problems[0]
    texts = Closed(finding._repr_html_()).texts
    assert texts[0].startswith("region=harbour: observed/expected 1.57")
    assert f"{finding.n:,}" in texts
    assert f"explains {problem.folded[0]}" in Closed(problem._repr_html_()).texts
    texts = Closed(audit.problems._repr_html_()).texts
    assert texts[0] == "5 distinct problems"
    assert [item.finding.segment for item in audit.problems] == [text for text in texts if text in audit._names]
    assert repr(audit.problems).splitlines()[0] == "5 distinct problems"
    assert repr(audit.problems).splitlines()[2].split()[-1] == str(len(problem.folded))


def test_explanations_histories_choices_and_patches_are_shown_as_tables():
    data = tu.simulate.lending(20_000, seed=0)
    columns = ["region", "product"]
    fix = tu.MCGrad("prediction", columns, rounds=2).fit(data, data["outcome"])
    patches = tu.Multiaccuracy("prediction", columns).fit(data, data["outcome"])
    auto = tu.Auto("prediction", columns, methods=("isotonic", "platt")).fit(data, data["outcome"])
    row = {name: data[name][0] for name in ("prediction", *columns)}
    for result, count in (
        (fix.explain(), len(fix.explain().corrections)),
        (fix.explain(row), len(fix.explain(row).largest())),
        (fix.explain(row, details=True), len(fix.explain(row).contributions)),
        (fix.history_, len(fix.history_.rounds)),
        (auto.choice_, len(auto.choice_.candidates)),
        (patches.patches_, len(patches.patches_)),
    ):
        texts = Closed(result._repr_html_())
        assert result._repr_html_().count("<th scope=row") == count > 0
        assert texts.texts[0].split()[0] == repr(result).split()[0]


def test_a_long_history_is_shortened_in_a_notebook():
    history = History.of([Evaluation(1.0)] * 40, 39, "enough", "held-out rows", "log loss")
    shown = history._repr_html_()
    assert shown.count("<th scope=row") == 16
    assert "24 more rounds in between" in shown


def test_names_are_escaped_in_a_notebook():
    random = np.random.default_rng(0)
    p = random.random(300)
    names = ["<script>alert(1)</script>", '"><img src=x>', "x" * 10_000]
    data = {"prediction": p, "outcome": (random.random(300) < p).astype(float), "a&b": [names[k % 3] for k in range(300)]}
    data["prediction"] = np.where(np.arange(300) % 3 == 0, p / 5, p)
    shown = tu.audit(data, by=["a&b"], **ROLES)._repr_html_()
    texts = Closed(shown).texts
    assert "a&b=<script>alert(1)</script>" in "".join(texts)
    assert len(shown) < 20_000


def test_without_notes_there_is_no_empty_list():
    assert "<ul>" not in html_table("title", ("segment", "rows"), [("all rows", "10")])
    assert "<ul><li>a note</li></ul>" in html_table("title", ("segment", "rows"), [("all rows", "10")], notes=["a note"])
