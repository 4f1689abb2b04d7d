"""Figures of audits show the values of audits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from figure_parts import labelled, legend_texts, lines
from trueup.errors import ArgumentError, DataError
from trueup.reports import figures

pytest.importorskip("matplotlib")

ROLES = {"outcome": "outcome", "prediction": "prediction"}


@pytest.fixture(scope="module")
def audited():
    return tu.audit(tu.simulate.lending(6_000, seed=1), by=["region", "product"], **ROLES)


def test_a_reliability_figure_has_the_overall_curve_its_band_and_a_histogram(audited):
    ax = figures.draw_reliability(audited, title="loans")
    curve, portrait = audited.overall.curve, audited.summary
    (line,) = (line for line in lines(ax) if len(line.get_xdata()) == len(curve))
    np.testing.assert_array_equal(line.get_xdata(), curve.predicted)
    np.testing.assert_array_equal(line.get_ydata(), curve.observed)
    band = labelled(ax, "if calibrated (95%)").get_paths()[0].vertices
    assert band[:, 1].max() == portrait.high.max()
    assert len(ax.patches) == len(portrait.histogram.weight)
    assert max(bar.get_height() for bar in ax.patches) == pytest.approx(0.16)
    assert set(legend_texts(ax)) == {"if calibrated (95%)", "calibrated", "all rows", "scores"}
    assert ax.get_title(loc="left") == "loans"
    assert ax.get_xlim() == ax.get_ylim()


def test_an_audit_plots_any_segment_as_a_pyplot_figure(audited):
    import matplotlib.pyplot as plt

    last = audited.finding(len(audited) - 1)
    assert last.curve is not None
    ax = audited.plot(last.segment, title="last")
    assert plt.gcf() is ax.figure
    np.testing.assert_array_equal(lines(ax)[0].get_ydata(), last.curve.observed)
    assert "if calibrated (95%)" in legend_texts(audited.plot())
    assert plt.get_fignums() == [1, 2]
    assert audited.plot("product=card", ax) is ax
    with pytest.raises(ArgumentError, match="no segment 'product=cart'"):
        audited.plot("product=cart")


def test_bins_of_the_users_choice_are_those_of_the_measures():
    loans = tu.simulate.lending(3_000, seed=1)
    y, p, inside = loans["outcome"], loans["prediction"], loans["region"] == "harbour"
    audit = tu.audit(loans, by=["region"], **ROLES)
    for bins in ({"n_bins": 20, "strategy": "width"}, {"n_bins": 7}, {"edges": [0, 0.05, 0.1, 0.3, 1]}):
        expected = tu.metrics.reliability(y, p, **bins)
        ax = figures.draw_reliability(audit, **bins)
        (line,) = (line for line in lines(ax) if line.get_marker() == "o")
        np.testing.assert_allclose(line.get_xydata(), np.column_stack([expected.predicted, expected.observed]))
        band = labelled(ax, "if calibrated (95%)").get_paths()[0].vertices
        assert set(np.round(expected.predicted, 12)) == set(np.round(band[:, 0], 12))
        expected = tu.metrics.reliability(y[inside], p[inside], **bins)
        (line,) = (line for line in lines(audit.plot("region=harbour", **bins)) if line.get_marker() == "o")
        np.testing.assert_allclose(line.get_ydata(), expected.observed)
        own = audit.reliability("region=harbour", **bins)
        np.testing.assert_allclose([own.low, own.high], [expected.low, expected.high])


@pytest.mark.parametrize("case", ["weights", "clusters", "real", "classes"])
def test_ten_bins_of_equal_weight_are_the_curve_that_the_audit_has(case):
    loans, random = tu.simulate.lending(6_000, seed=1), np.random.default_rng(0)
    given = dict(ROLES, by=["region"], prediction="prediction")
    if case == "weights":
        given["weight"] = random.uniform(0.5, 2, 6_000)
    elif case == "clusters":
        given["cluster"] = np.arange(6_000) // 3
    elif case == "real":
        loans["outcome"], given["task"] = loans["prediction"] + random.normal(0, 0.1, 6_000), "regression"
    else:
        loans |= {"p_0": 1 - loans["prediction"], "p_1": loans["prediction"]}
        given |= {"prediction": ["p_0", "p_1"], "by": ["region"]}
    audit, compared = tu.audit(loans, **given), 0
    for finding in audit:
        if len(finding.curve) == 10:
            curve, compared = audit.reliability(finding.segment), compared + 1
            np.testing.assert_allclose(curve.observed, finding.curve.observed)
            np.testing.assert_allclose([curve.low, curve.high], [finding.curve.low, finding.curve.high])
    assert compared > 3


def test_curves_of_the_measures_are_drawn(audited):
    random = np.random.default_rng(0)
    p = random.random(500)
    y = random.random(500) < p
    pav, band = (tu.metrics.reliability(y, p, draws=20, **how) for how in ({"kind": "pav"}, {"band": "consistency"}))
    ax = figures.draw_reliability({"isotonic": pav, "audit": audited})
    np.testing.assert_array_equal(lines(ax)[0].get_xydata(), np.column_stack([pav.predicted, pav.observed]))
    assert legend_texts(ax) == ["calibrated", "isotonic", "audit"]
    ax = figures.draw_reliability(band)
    shaded = labelled(ax, "if calibrated").get_paths()[0].vertices
    assert shaded[:, 1].max() == band.high.max()


def test_other_bins_need_the_rows(audited):
    import pickle

    with pytest.raises(ArgumentError, match="the rows of this audit are not in memory"):
        figures.draw_reliability(pickle.loads(pickle.dumps(audited)), n_bins=20)


def test_findings_and_several_results_have_no_band(audited):
    single = figures.draw_reliability(audited["region=harbour"])
    assert not single.patches
    assert "region=harbour" in legend_texts(single)
    both = figures.draw_reliability({"all": audited, "harbour": audited["region=harbour"]})
    assert {"all", "harbour", "calibrated"} == set(legend_texts(both))
    assert not both.patches


def test_cumulative_differences_have_a_band_of_two_standard_errors(audited):
    ax = figures.draw_cumulative(audited)
    path = audited.summary.path
    line = labelled(ax, "all rows")
    np.testing.assert_array_equal(line.get_xydata(), np.column_stack([path.share, path.value]))
    band = labelled(ax, "±2 standard errors").get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(2 * path.noise[-1])
    both = figures.draw_cumulative({"one": audited, "other": audited})
    assert legend_texts(both) == ["one", "other"]
    assert ax.get_xlabel() == "share of rows, by score"


def test_the_worst_segments_are_listed_from_the_top_with_their_intervals(audited):
    ax = figures.draw_segments(audited, count=5)
    worst = audited.worst(5)
    assert [label.get_text() for label in ax.get_yticklabels()] == [finding.segment for finding in worst]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    flagged = labelled(ax, "miscalibrated")
    assert flagged.get_xdata()[0] == pytest.approx(worst[0].ratio)
    assert len(flagged.get_xdata()) == sum(finding.p_adjusted <= 0.05 for finding in worst)
    spans = [path.vertices for group in ax.collections for path in group.get_paths()]
    assert any(span[:, 0] == pytest.approx([worst[0].ratio_low_adjusted, worst[0].ratio_high_adjusted]) for span in spans)
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel() == "observed / expected (95% intervals, for all segments at once)"


def test_segments_within_a_tolerance_have_a_colour_of_their_own():
    data = tu.simulate.lending(20_000, seed=1)
    audit = tu.audit(data, by=["region", "product"], tolerance="30%", **ROLES)
    ax = figures.draw_segments(audit, count=8)
    states = [finding.state for finding in audit.worst(8)]
    for state, label in (
        ("material", "material"),
        ("possibly material", "possibly material"),
        ("within tolerance", "within tolerance"),
        ("no miscalibration found", "within noise"),
    ):
        assert len(labelled(ax, label).get_xdata()) == states.count(state) > 0
    (band,) = ax.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((1 / 1.3, 1.3))


def _points(ax, label):
    return np.asarray(labelled(ax, label).get_offsets())


def test_all_segments_are_drawn_by_rows_and_sigma_coloured_by_state(audited):
    ax = figures.draw_segment_scatter(audited, labels=3)
    assert ax.get_xscale() == "log"
    for state, label in (("miscalibrated", "miscalibrated"), ("no miscalibration found", "within noise")):
        expected = [(finding.n, finding.sigma) for finding in audited if finding.state == state]
        assert sorted(map(tuple, _points(ax, label).tolist())) == sorted(expected)
        assert expected
    largest = sorted(audited, key=lambda finding: -finding.sigma)[:3]
    assert {text.get_text() for text in ax.texts} == {finding.segment for finding in largest}
    assert ax.get_ylim()[1] > audited.worst_sigma
    assert set(legend_texts(ax)) == {"miscalibrated", "within noise"}


def test_the_height_of_the_scatter_is_the_quantity_asked_for(audited):
    p_value = figures.draw_segment_scatter(audited, quantity="p_value")
    assert p_value.get_yscale() == "log"
    assert p_value.get_ylim()[0] > p_value.get_ylim()[1]
    drawn = np.concatenate([_points(p_value, label)[:, 1] for label in ("miscalibrated", "within noise")])
    np.testing.assert_allclose(np.sort(drawn), np.sort([finding.p_value for finding in audited]))
    relative = figures.draw_segment_scatter(audited, quantity="relative")
    assert _points(relative, "miscalibrated")[:, 1].max() == pytest.approx(audited.mce_relative)
    ecce = figures.draw_segment_scatter(audited, quantity="ecce")
    assert sorted(_points(ecce, "within noise")[:, 1]) == sorted(
        f.ecce for f in audited if f.state == "no miscalibration found"
    )


def test_a_highlighted_column_has_a_colour_per_level(audited):
    ax = figures.draw_segment_scatter(audited, highlight="product", labels=0)
    own = [finding for finding in audited if "product=card" in finding.segment.split(" & ")]
    assert sorted(_points(ax, "product=card")[:, 0]) == sorted(finding.n for finding in own)
    colours = {tuple(marks.get_edgecolor()[0]) for marks in ax.collections}
    assert len(colours) == len(legend_texts(ax)) > 2
    assert not ax.texts
    many = tu.audit(tu.simulate.lending(9_000, seed=1), by=["age", "region"], bins=12, **ROLES)
    ax = figures.draw_segment_scatter(many, highlight="age")
    assert sum(len(marks.get_offsets()) for marks in ax.collections) == many.tested
    assert "other levels" in legend_texts(ax)


def test_rows_of_clusters_are_effective_rows():
    data = tu.simulate.lending(3_000, seed=1)
    audit = tu.audit(data, by=["region"], cluster=np.arange(3_000) // 5, **ROLES)
    ax = figures.draw_segment_scatter(audit)
    assert ax.get_xlabel() == "effective rows of the segment"
    drawn = np.concatenate([np.asarray(marks.get_offsets())[:, 0] for marks in ax.collections])
    np.testing.assert_allclose(np.sort(drawn), np.sort([f.n / f.design_effect for f in audit if f.testable]))


def test_expected_means_around_zero_are_drawn_as_differences():
    random = np.random.default_rng(0)
    x = random.normal(0, 1, 900)
    data = {"y": x + 0.5, "p": x, "g": random.choice(["a", "b", "c"], 900)}
    audit = tu.audit(data, outcome="y", prediction="p", task="regression")
    assert audit.overall.expected < 0.2
    ax = figures.draw_segments(audit)
    assert ax.get_xscale() == "linear"
    assert ax.get_xlabel().startswith("observed minus expected")
    np.testing.assert_allclose(labelled(ax, "miscalibrated").get_xdata(), [f.bias for f in audit.worst(audit.rejected)])


def test_ratios_beyond_the_axis_are_drawn_at_its_edge():
    p = np.full(400, 0.01)
    y = np.where(np.arange(400) % 2, 1.0, 0.0)
    ax = figures.draw_segments(tu.audit({"outcome": y, "prediction": p}, by=[], **ROLES))
    assert labelled(ax, "miscalibrated").get_xdata()[0] == 8


def test_names_with_markup_are_drawn(tmp_path):
    random = np.random.default_rng(0)
    p = random.random(600)
    names = ["$x^$", "line\nbreak", "y" * 5_000, "$\\frac"]
    data = {"prediction": p, "outcome": (random.random(600) < p).astype(float)}
    audit = tu.audit(data, by=[], segments={name: np.arange(600) % 4 == index for index, name in enumerate(names)}, **ROLES)
    for ax in (figures.draw_segments(audit), figures.draw_reliability(audit["$x^$"])):
        ax.figure.savefig(tmp_path / "picture.svg")
        assert "<svg" in (tmp_path / "picture.svg").read_text()


def test_given_axes_are_used_and_returned(audited):
    from matplotlib.figure import Figure

    for draw in (figures.draw_reliability, figures.draw_cumulative, figures.draw_segments, figures.draw_segment_scatter):
        ax = Figure().add_subplot()
        assert draw(audited, ax=ax) is ax


@pytest.mark.filterwarnings("ignore::trueup.errors.OneClassWarning")
def test_constant_data_are_drawn(tmp_path):
    binary = tu.audit({"outcome": [0.0] * 60, "prediction": [0.0] * 60}, by=[], **ROLES)
    real = tu.audit({"outcome": [3.0] * 60, "prediction": [3.0] * 60}, by=[], task="regression", **ROLES)
    for audit in (binary, real):
        for draw in (
            figures.draw_reliability,
            figures.draw_cumulative,
            figures.draw_segments,
            figures.draw_segment_scatter,
        ):
            draw(audit).figure.savefig(tmp_path / "picture.svg")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda audit: figures.draw_reliability([1]),
            "result must be an audit, a finding or a reliability curve; got list\nhint: pass one",
        ),
        (
            lambda audit: figures.draw_reliability({"a": 1}),
            "'a' must be an audit, a finding or a reliability curve; got int",
        ),
        (lambda audit: figures.draw_reliability({}), "nothing to draw"),
        (lambda audit: figures.draw_cumulative(audit.overall), "result must be an audit from trueup.audit; got Finding"),
        (lambda audit: figures.draw_cumulative({}), "nothing to draw"),
        (lambda audit: figures.draw_segments({"a": audit}), "audit must be an audit from trueup.audit; got dict"),
        (lambda audit: figures.draw_segments(audit, count=0), "count must be an integer at least 1; got 0"),
        (lambda audit: figures.draw_segments(audit, count=True), "count must be"),
        (lambda audit: figures.draw_segment_scatter({"a": audit}), "audit must be an audit from trueup.audit; got dict"),
        (lambda audit: figures.draw_segment_scatter(audit, quantity="size"), "quantity must be one of 'sigma', 'ecce'"),
        (lambda audit: figures.draw_segment_scatter(audit, labels=-1), "labels must be an integer at least 0; got -1"),
        (
            lambda audit: figures.draw_segment_scatter(audit, highlight="age"),
            "highlight must be a column of the audit; got 'age'\nhint: its columns are region, product",
        ),
        (
            lambda audit: figures.draw_reliability(audit["region=harbour"], n_bins=20),
            "n_bins needs an audit with its rows; got Finding\nhint: draw audit.reliability",
        ),
        (lambda audit: figures.draw_reliability(audit, edges=[0.1, 1]), "edges go from 0.1 to 1; got a score of"),
        (lambda audit: figures.draw_reliability(audit, strategy="equal"), "strategy must be one of 'width', 'mass'"),
        (lambda audit: audit.reliability("region=here"), "no segment 'region=here'"),
        (lambda audit: figures.draw_segments(audit, ax="here"), "ax must be axes of matplotlib; got str"),
    ],
)
def test_invalid_arguments_are_rejected(audited, draw, message):
    with pytest.raises(ArgumentError, match=message):
        draw(audited)


def test_results_that_cannot_be_drawn_are_rejected(audited):
    with pytest.raises(DataError, match="no reliability curve of 'region=harbour'"):
        figures.draw_reliability(replace(audited["region=harbour"], curve=None))
    with pytest.raises(DataError, match="result is a copy of an audit without its rows"):
        figures.draw_cumulative(replace(audited, summary_source=None))
    small = tu.audit(tu.simulate.lending(60, seed=1), by=[], min_rows=100, **ROLES)
    with pytest.raises(DataError, match="no segment was tested"):
        figures.draw_segments(small)
    with pytest.raises(DataError, match="no segment was tested"):
        figures.draw_segment_scatter(small)
    assert not figures.draw_reliability(replace(audited, summary_source=None)).patches


def test_legends_do_not_cover_neighbouring_axes(audited):
    from matplotlib.figure import Figure

    for layout, inside in (("tight", True), ("constrained", False)):
        figure = Figure(figsize=(12, 4), layout=layout)
        left, right = figure.subplots(1, 2)
        figures.draw_cumulative(audited, ax=left)
        figures.draw_cumulative(audited, ax=right)
        figure.canvas.draw()
        legend, axes = left.get_legend().get_window_extent(), left.get_window_extent()
        assert (legend.x1 <= axes.x1) == inside
        assert axes.width > 0.2 * figure.bbox.width
