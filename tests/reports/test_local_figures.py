"""Figures of local calibration show the values of results."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from figure_parts import dots, legend_texts, lines
from trueup import _optional
from trueup.errors import ArgumentError, DataError, MissingPackageError
from trueup.metrics import LceCurve, local_errors
from trueup.reports import figures
from trueup.reports.figures.calibration import FAINT, HALF

pytest.importorskip("matplotlib")


def curve(mlce=(0.9, 0.5, 0.2), mce=0.1):
    mlce = np.array(mlce, float)
    return LceCurve(np.geomspace(0.1, 10, len(mlce)), mlce, mlce / 2, np.zeros(len(mlce), np.int64), mce)


def bar_label(ax):
    return ax.collections[-1].colorbar.ax.get_ylabel()


def test_a_landscape_draws_the_largest_errors_on_top():
    phi, lce = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]), np.array([0.3, 0.1, 0.2])
    marks = figures.draw_landscape(phi, lce).collections[0]
    np.testing.assert_array_equal(marks.get_offsets(), phi[[1, 2, 0]])
    np.testing.assert_array_equal(marks.get_array(), [0.1, 0.2, 0.3])
    assert marks.get_clim() == (0.0, 0.3)


def test_signed_errors_have_a_symmetric_scale():
    marks = figures.draw_landscape([[0, 0], [1, 1]], [-0.4, 0.1]).collections[0]
    assert marks.get_clim() == (-0.4, 0.4)
    np.testing.assert_array_equal(marks.get_array(), [0.1, -0.4])


def test_the_scale_of_a_landscape_can_be_set():
    ax = figures.draw_landscape([[0, 0], [1, 1]], [0.1, 0.2], max_error=0.5, title="a bin")
    assert ax.collections[0].get_clim() == (0.0, 0.5)
    assert ax.get_title(loc="left") == "a bin"


def test_all_zero_errors_are_drawn():
    assert figures.draw_landscape([[0, 0], [1, 1]], [0.0, 0.0]).collections[0].get_clim() == (0.0, 1.0)
    line = lines(figures.draw_lce_cdf([0.0, 0.0]))[0]
    assert line.get_ydata()[-1] == 1.0


def test_rows_without_a_value_are_empty_circles_and_not_counted():
    ax = figures.draw_landscape([[0, 0], [1, 1], [2, 2]], [0.1, np.nan, 0.2])
    rings, marks = ax.collections
    np.testing.assert_array_equal(rings.get_offsets(), [[1, 1]])
    assert len(rings.get_facecolors()) == 0
    np.testing.assert_array_equal(marks.get_array(), [0.1, 0.2])
    (line,) = lines(figures.draw_lce_cdf([0.1, np.nan, 0.2]))
    np.testing.assert_array_equal(line.get_ydata(), [0, 0.5, 1])


def test_axes_have_ticks_and_the_column_names_of_a_frame(frame):
    phi = {"age": [20.0, 60.0], "income": [1.0, 3.0]}
    ax = figures.draw_landscape(frame(phi), [0.1, 0.2])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("age", "income")
    np.testing.assert_array_equal(ax.collections[0].get_offsets(), [[20, 1], [60, 3]])
    plain = figures.draw_landscape(np.column_stack(list(phi.values())), [0.1, 0.2])
    assert (plain.get_xlabel(), plain.get_ylabel()) == ("embedding, first column", "second column")
    for drawn in (ax, plain):
        drawn.figure.draw_without_rendering()
        assert any(text.get_text() for text in drawn.get_xticklabels())
        assert any(text.get_text() for text in drawn.get_yticklabels())


def test_columns_without_names_leave_the_default_labels():
    pandas = pytest.importorskip("pandas")
    ax = figures.draw_landscape(pandas.DataFrame([[0.0, 0.0], [1.0, 1.0]]), [0.1, 0.2])
    assert ax.get_xlabel() == "embedding, first column"


@pytest.mark.parametrize("errors", [[0.0, 0.1, 0.2, 1.0], [0.0, -0.1, 0.2, -1.0]])
def test_all_errors_are_visible_on_white_and_larger_ones_are_darker(errors):
    marks = figures.draw_landscape([[0, 0], [1, 1], [2, 2], [3, 3]], errors).collections[0]
    marks.figure.draw_without_rendering()
    by_size = marks.get_facecolors()[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert by_size[0] < 0.8
    assert (np.diff(by_size) < 0).all()  # the worse the darker


def test_local_errors_are_faded_unless_significant():
    # One row with a large error; groups of 6, 40 and 40 rows: significant unadjusted (2/64), after adjustment, and not.
    phi = np.repeat([[0.0, 0], [1, 0], [2, 0], [3, 0]], [1, 6, 40, 40], axis=0)
    hit = np.r_[1, np.ones(6), np.ones(36), np.zeros(4), np.tile([0, 1], 20)]
    found = local_errors(phi, np.full(87, 0.5), hit, gamma=1e-3)
    ax = figures.draw_landscape(phi, found)
    under, marks = ax.collections
    np.testing.assert_array_equal(under.get_offsets(), phi)
    shade = dict(zip(marks.get_offsets()[:, 0].tolist(), marks.get_alpha().tolist(), strict=True))
    assert shade == {0: FAINT, 1: HALF, 2: 1.0, 3: FAINT}
    assert marks.get_offsets()[-1, 0] == 2  # the most certain on top
    assert (np.diff(marks.get_alpha()) >= 0).all()
    assert (marks.get_array() >= 0).all()
    assert "grey: not significant" in bar_label(ax)


def test_insignificant_errors_do_not_set_the_scale():
    phi = np.repeat([[0.0, 0], [1, 0]], [1, 60], axis=0)
    found = local_errors(phi, np.full(61, 0.5), np.r_[1, np.ones(48), np.zeros(12)], gamma=1e-3)
    assert figures.draw_landscape(phi, found).collections[-1].get_clim() == (0.0, pytest.approx(0.3))
    assert figures.draw_landscape(phi, found, max_error=0.6).collections[-1].get_clim() == (0.0, 0.6)
    calm = local_errors(phi[:3], [0.5] * 3, [1, 1, 0], gamma=1e-3)
    assert figures.draw_landscape(phi[:3], calm).collections[-1].get_clim() == (0.0, 0.5)


def test_rows_without_neighbours_are_empty_circles_among_local_errors():
    found = local_errors([0.0, 0.0, 1.0], [0.5, 0.5, 0.9], [1, 0, 1], gamma=1, bins=2, leave_one_out=True)
    rings, under, marks = figures.draw_landscape([[0, 0], [0, 0], [1, 1]], found).collections
    np.testing.assert_array_equal(rings.get_offsets(), [[1, 1]])
    assert len(under.get_offsets()) == len(marks.get_offsets()) == 2


def test_the_cdf_passes_through_the_sorted_errors():
    ax = figures.draw_lce_cdf([0.4, 0.1, -0.2])
    (line,) = lines(ax)
    np.testing.assert_allclose(line.get_xdata(), [0, 0.1, 0.2, 0.4])
    np.testing.assert_allclose(line.get_ydata(), [0, 1 / 3, 2 / 3, 1])
    (mean,) = dots(ax)
    assert mean.get_xdata()[0] == pytest.approx(0.7 / 3)
    assert mean.get_ydata()[0] == pytest.approx(2 / 3)  # two errors are no larger than the mean: the dot is on the line
    assert legend_texts(ax) == []


def test_the_error_of_a_bin_has_the_colour_of_its_line():
    ax = figures.draw_lce_cdf({"best": [0.1, 0.2], "worst": [0.3, 0.4]}, bin_error={"worst": -0.25})
    best, worst, stroke = lines(ax)
    np.testing.assert_array_equal(stroke.get_xdata(), [0.25, 0.25])
    assert stroke.get_color() == worst.get_color() != best.get_color()
    assert legend_texts(ax) == ["best", "worst"]
    both = figures.draw_lce_cdf([0.1, 0.2], bin_error=0.05)
    np.testing.assert_array_equal(lines(both)[1].get_xdata(), [0.05, 0.05])


def test_mlce_has_a_logarithmic_axis_and_its_limit_at_the_right_edge():
    ax = figures.draw_mlce({"none": curve(), "fixed": curve((0.8, 0.3, 0.1), 0.05)}, title="data")
    assert ax.get_xscale() == "log"
    none, fixed = lines(ax)
    np.testing.assert_allclose(none.get_xdata(), [0.1, 1, 10])
    np.testing.assert_array_equal(fixed.get_ydata(), [0.8, 0.3, 0.1])
    assert [mark.get_ydata()[0] for mark in dots(ax)] == [0.1, 0.05]
    assert legend_texts(ax) == ["none", "fixed"]
    assert "maximum" in ax.get_ylabel()


def test_a_single_curve_has_no_legend_and_may_be_in_any_order():
    turned = replace(curve(), **{name: getattr(curve(), name)[::-1] for name in ("gamma", "mlce", "mean")})
    ax = figures.draw_mlce(turned, average=True)
    (line,) = lines(ax)
    np.testing.assert_array_equal(line.get_ydata(), [0.45, 0.25, 0.1])
    assert dots(ax) == []
    assert legend_texts(ax) == []
    assert "mean" in ax.get_ylabel()


def test_forty_lines_all_look_different():
    ax = figures.draw_mlce({str(k): curve() for k in range(40)}, average=True)
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in lines(ax)}
    assert len(looks) == 40


def test_given_axes_are_used_and_returned():
    from matplotlib.figure import Figure

    for draw, arguments in (
        (figures.draw_mlce, [curve()]),
        (figures.draw_lce_cdf, [[0.1, 0.2]]),
        (figures.draw_landscape, [[[0, 0], [1, 1]], [0.1, 0.2]]),
    ):
        ax = Figure().add_subplot()
        assert draw(*arguments, ax) is ax


def test_a_figure_is_a_pyplot_figure_that_needs_no_display(tmp_path):
    code = (
        "import matplotlib.pyplot as plt, trueup as tu\n"
        "ax = tu.figures.draw_landscape([[0, 0], [1, 1]], [0.1, 0.2])\n"
        "assert plt.gcf() is ax.figure and plt.get_fignums() == [1]\n"
        f"plt.savefig({str(tmp_path / 'a.png')!r})"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.draw_landscape([[0, 0, 0]], [0.1]), r"two columns .* got \(1, 3\) and 1 errors"),
        (lambda: figures.draw_landscape([[0, 0]], [0.1, 0.2]), r"got \(1, 2\) and 2 errors"),
        (lambda: figures.draw_landscape([0, 0], [0.1, 0.2]), r"phi must have 2 dimensions and rows; got shape \(2,\)"),
        (lambda: figures.draw_landscape([[0, np.inf]], [0.1]), "phi must be finite; got 1 values"),
        (
            lambda: figures.draw_landscape([[0, 0]], ["much"]),
            "lce must be numbers; got list\nhint: pass the result of metrics.lce or",
        ),
        (
            lambda: figures.draw_landscape([[0, 0]], curve()),
            "lce must be numbers; got LceCurve\nhint: pass the result of metrics.lce or",
        ),
        (
            lambda: figures.draw_landscape([[0, 0]], 0.3),
            r"lce must have 1 dimension .* shape \(\)\nhint: pass the result of metrics.lce",
        ),
        (lambda: figures.draw_landscape([0.1], [[0, 0]]), r"got shape \(1,\)\nhint: the order is phi, lce"),
        (lambda: figures.draw_lce_cdf([]), r"lce must have 1 dimension and rows; got shape \(0,\)"),
        (lambda: figures.draw_lce_cdf({"base": [np.nan]}), "lce of 'base' must be finite"),
        (lambda: figures.draw_lce_cdf([0.1], bin_error="small"), "bin_error must be numbers"),
    ],
)
def test_invalid_numbers_are_rejected(draw, message):
    with pytest.raises(DataError, match=message):
        draw()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.draw_mlce({}), "nothing to draw"),
        (lambda: figures.draw_lce_cdf({}), "nothing to draw"),
        (lambda: figures.draw_lce_cdf({"a": [0.1]}, bin_error={"b": 0.1}), "names 'b', which has no errors"),
        (lambda: figures.draw_landscape([[0, 0]], [0.1], max_error=-1), "max_error must be a number above 0; got -1"),
        (
            lambda: figures.draw_landscape([[0, 0]], [0.1], max_error="most"),
            "max_error must be a number above 0; got 'most'",
        ),
        (lambda: figures.draw_landscape([[0, 0]], [0.1], ax="here"), "ax must be axes of matplotlib; got str"),
        (lambda: figures.draw_mlce({"a": [0.1, 0.2]}), "'a' must be a curve from metrics.lce_curve; got list"),
        (
            lambda: figures.draw_mlce(np.ones(3)),
            "curves must be a curve from metrics.lce_curve; got ndarray\nhint: pass one such result",
        ),
    ],
)
def test_invalid_arguments_are_rejected(draw, message):
    with pytest.raises(ArgumentError, match=message):
        draw()


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingPackageError, match=r"pip install 'trueup\[plots\]'"):
        figures.draw_mlce(curve())


def test_a_broken_package_is_not_reported_as_missing(monkeypatch):
    def broken(name):
        raise ImportError(f"{name} lacks a library")

    monkeypatch.setattr(_optional.importlib, "import_module", broken)
    with pytest.raises(MissingPackageError, match=r"'matplotlib.pyplot', which cannot be imported \(.* lacks a library\)"):
        figures.draw_mlce(curve())
