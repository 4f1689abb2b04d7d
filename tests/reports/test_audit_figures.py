"""Pictures of audits draw what audits hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from pictures import lines, named, words
from trueup.errors import ArgumentError, DataError
from trueup.reports import figures

pytest.importorskip("matplotlib")

ROLES = {"outcome": "outcome", "prediction": "prediction"}


@pytest.fixture(scope="module")
def audited():
    return tu.audit(tu.simulate.lending(6_000, seed=1), by=["region", "product"], **ROLES)


def test_a_reliability_curve_is_that_of_the_whole_with_its_band_and_scores(audited):
    ax = figures.draw_reliability(audited, title="loans")
    curve, portrait = audited.overall.curve, audited.portrait
    (line,) = (one for one in lines(ax) if len(one.get_xdata()) == len(curve))
    np.testing.assert_array_equal(line.get_xdata(), curve.predicted)
    np.testing.assert_array_equal(line.get_ydata(), curve.observed)
    band = named(ax, "if calibrated (95%)").get_paths()[0].vertices
    assert band[:, 1].max() == portrait.high.max()
    assert len(ax.patches) == len(portrait.histogram.weight)
    assert max(bar.get_height() for bar in ax.patches) == pytest.approx(0.16)
    assert set(words(ax)) == {"if calibrated (95%)", "calibrated", "all rows", "scores"}
    assert ax.get_title(loc="left") == "loans"
    assert ax.get_xlim() == ax.get_ylim()


def test_a_finding_and_several_are_drawn_without_band(audited):
    one = figures.draw_reliability(audited["region=harbour"])
    assert not one.patches
    assert "region=harbour" in words(one)
    both = figures.draw_reliability({"all": audited, "harbour": audited["region=harbour"]})
    assert {"all", "harbour", "calibrated"} == set(words(both))
    assert not both.patches


def test_cumulative_differences_are_drawn_with_what_chance_would_do(audited):
    ax = figures.draw_cumulative(audited)
    path = audited.portrait.path
    line = named(ax, "all rows")
    np.testing.assert_array_equal(line.get_xydata(), np.column_stack([path.share, path.value]))
    band = named(ax, "chance").get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(2 * path.noise[-1])
    both = figures.draw_cumulative({"one": audited, "other": audited})
    assert words(both) == ["one", "other"]
    assert ax.get_xlabel() == "share of rows, by score"


def test_the_worst_segments_are_drawn_from_the_top_with_their_intervals(audited):
    ax = figures.draw_segments(audited, count=5)
    worst = audited.worst(5)
    assert [label.get_text() for label in ax.get_yticklabels()] == [one.segment for one in worst]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    off = named(ax, "off")
    assert off.get_xdata()[0] == pytest.approx(worst[0].ratio)
    assert len(off.get_xdata()) == sum(one.p_adjusted <= 0.05 for one in worst)
    spans = [path.vertices for group in ax.collections for path in group.get_paths()]
    assert any(span[:, 0] == pytest.approx([worst[0].ratio_low, worst[0].ratio_high]) for span in spans)
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel() == "observed / expected (95% interval)"


def test_means_around_nought_are_drawn_as_differences():
    random = np.random.default_rng(0)
    x = random.normal(0, 1, 900)
    data = {"y": x + 0.5, "p": x, "g": random.choice(["a", "b", "c"], 900)}
    audit = tu.audit(data, outcome="y", prediction="p", task="regression")
    assert audit.overall.expected < 0.2
    ax = figures.draw_segments(audit)
    assert ax.get_xscale() == "linear"
    assert ax.get_xlabel().startswith("observed minus expected")
    np.testing.assert_allclose(named(ax, "off").get_xdata(), [one.bias for one in audit.worst(audit.rejected)])


def test_ratios_beyond_the_edge_stand_at_it():
    p = np.full(400, 0.01)
    y = np.where(np.arange(400) % 2, 1.0, 0.0)
    ax = figures.draw_segments(tu.audit({"outcome": y, "prediction": p}, by=[], **ROLES))
    assert named(ax, "off").get_xdata()[0] == 8


def test_names_of_all_kinds_are_drawn(tmp_path):
    random = np.random.default_rng(0)
    p = random.random(600)
    names = ["$x^$", "line\nbreak", "y" * 5_000, "$\\frac"]
    data = {"prediction": p, "outcome": (random.random(600) < p).astype(float)}
    audit = tu.audit(data, by=[], segments={name: np.arange(600) % 4 == at for at, name in enumerate(names)}, **ROLES)
    for ax in (figures.draw_segments(audit), figures.draw_reliability(audit["$x^$"])):
        ax.figure.savefig(tmp_path / "picture.svg")
        assert "<svg" in (tmp_path / "picture.svg").read_text()


def test_axes_that_are_given_are_drawn_on_and_given_back(audited):
    from matplotlib.figure import Figure

    for draw in (figures.draw_reliability, figures.draw_cumulative, figures.draw_segments):
        ax = Figure().add_subplot()
        assert draw(audited, ax=ax) is ax


@pytest.mark.filterwarnings("ignore::trueup.errors.OneClassWarning")
def test_small_and_even_data_are_drawn(tmp_path):
    one = tu.audit({"outcome": [0.0] * 60, "prediction": [0.0] * 60}, by=[], **ROLES)
    real = tu.audit({"outcome": [3.0] * 60, "prediction": [3.0] * 60}, by=[], task="regression", **ROLES)
    for audit in (one, real):
        for draw in (figures.draw_reliability, figures.draw_cumulative, figures.draw_segments):
            draw(audit).figure.savefig(tmp_path / "picture.svg")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda audit: figures.draw_reliability([1]), "result must be an audit or a finding; got list\nhint: pass what"),
        (lambda audit: figures.draw_reliability({"a": 1}), "'a' must be an audit or a finding; got int"),
        (lambda audit: figures.draw_reliability({}), "nothing to draw"),
        (lambda audit: figures.draw_cumulative(audit.overall), "result must be an audit by trueup.audit; got Finding"),
        (lambda audit: figures.draw_cumulative({}), "nothing to draw"),
        (lambda audit: figures.draw_segments({"a": audit}), "audit must be an audit by trueup.audit; got dict"),
        (lambda audit: figures.draw_segments(audit, count=0), "count must be a whole number of at least 1; got 0"),
        (lambda audit: figures.draw_segments(audit, count=True), "count must be"),
        (lambda audit: figures.draw_segments(audit, ax="here"), "ax must be axes of matplotlib; got str"),
    ],
)
def test_arguments_that_make_no_sense_are_named(audited, draw, message):
    with pytest.raises(ArgumentError, match=message):
        draw(audited)


def test_what_cannot_be_drawn_is_told(audited):
    with pytest.raises(DataError, match="no reliability curve of 'region=harbour'"):
        figures.draw_reliability(replace(audited["region=harbour"], curve=None))
    with pytest.raises(DataError, match="result is a copy of an audit without its rows"):
        figures.draw_cumulative(replace(audited, whole_rows=[]))
    thin = tu.audit(tu.simulate.lending(60, seed=1), by=[], min_rows=100, **ROLES)
    with pytest.raises(DataError, match="no segment was tested"):
        figures.draw_segments(thin)
    assert not figures.draw_reliability(replace(audited, whole_rows=[])).patches


def test_a_legend_leaves_the_next_axes_alone_in_a_figure_that_makes_no_room(audited):
    from matplotlib.figure import Figure

    for layout, within in (("tight", True), ("constrained", False)):
        figure = Figure(figsize=(12, 4), layout=layout)
        left, right = figure.subplots(1, 2)
        figures.draw_cumulative(audited, ax=left)
        figures.draw_cumulative(audited, ax=right)
        figure.canvas.draw()
        legend, axes = left.get_legend().get_window_extent(), left.get_window_extent()
        assert (legend.x1 <= axes.x1) == within
        assert axes.width > 0.2 * figure.bbox.width
