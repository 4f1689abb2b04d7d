"""Figures of fits show the losses of the history."""

from __future__ import annotations

import pytest

import trueup as tu
from trueup.data.simulate import Shift, population
from trueup.errors import ArgumentError

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def lines_of(ax):
    return {line.get_label(): line for line in ax.lines}


@pytest.fixture(scope="module")
def fix():
    data = population(4000, 1, levels=(4, 3), shifts=[Shift({"c0": "c0_0"}, 1.5)])
    return tu.MCGrad("prediction", ["c0", "c1"], threads=1).fit(data, data["outcome"])


def test_the_learning_curve_shows_every_round_and_tree(fix):
    history, ax = fix.history_, tu.figures.draw_history(fix, title="curve")
    lines = lines_of(ax)
    assert lines["cross-validation"].get_ydata().tolist() == [own.loss for own in history.rounds]
    assert lines["training rows"].get_ydata().tolist() == [own.training_loss for own in history.rounds]
    assert lines[f"chosen: round {history.chosen}"].get_ydata().tolist() == [history.loss_after]
    first = next(number for number, own in enumerate(history.rounds) if own.tree_losses)
    curve = history.rounds[first].tree_losses
    assert lines["after each tree"].get_ydata().tolist() == [history.rounds[first - 1].loss, *curve]
    start, best = lines["cross-validation"].get_xdata()[first - 1 : first + 1]
    assert best - start == history.rounds[first].trees
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == ("trees", "log loss", "curve")


def test_a_loaded_model_is_drawn_by_round(fix, tmp_path):
    tu.save(fix, tmp_path / "m.trueup")
    model = tu.load(tmp_path / "m.trueup")
    for fit in (model, model.history):
        ax = tu.figures.draw_history(fit)
        assert ax.get_xlabel() == "round"
        assert lines_of(ax)["cross-validation"].get_xdata().tolist() == list(range(len(model.history.rounds)))
        assert "after each tree" not in lines_of(ax)


def test_a_fit_that_changes_nothing_is_marked_at_the_base_score():
    data = population(1500, 1, levels=(4,))
    fix = tu.MCGrad("prediction", ["c0"], stopping=tu.Holdout(0.3), threads=1).fit(data, data["outcome"])
    ax = tu.figures.draw_history(fix)
    assert lines_of(ax)["chosen: no correction"].get_xdata().tolist() == [0]
    platt = tu.Platt("prediction").fit(data, data["outcome"])
    assert "training rows" in lines_of(tu.figures.draw_history(platt))  # it was evaluated on these


def test_only_fits_are_drawn():
    with pytest.raises(ArgumentError, match="fit must be a fitted calibrator, a Model or a History; got Platt"):
        tu.figures.draw_history(tu.Platt("p"))
