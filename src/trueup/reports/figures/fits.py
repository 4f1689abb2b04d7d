"""Figures of fits: the learning curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.history import History
from trueup.calibrators.stopping import TRAINING_ROWS
from trueup.errors import ArgumentError
from trueup.reports.figures.style import COLOURS, GREY, INK, get_axes, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trueup._types import FloatArray


def draw_history(fit: Any, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the learning curve of a fit: held-out and training loss after each round, with the chosen round marked.

    Rounds of trees are placed at their number of trees in `history_`; the thin line between them is the held-out loss after
    each tree, as far as the search went: models that are averaged bear more trees than are best for one. A loaded model
    does not have that line, and its rounds are placed by their number, as those without trees are.

    Parameters
    ----------
    fit : fitted calibrator, Model or History
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(10_000, seed=1)
    >>> fix = tu.MCGrad("prediction", ["region", "age"]).fit(data, data["outcome"])
    >>> ax = tu.figures.draw_history(fix)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('trees', 'log loss')
    """
    history = _history_of(fit)
    if history.is_imported:
        raise ArgumentError("an imported model has no losses to draw", hint="figures of its scores need rows with outcomes")
    ax = get_axes(ax, 6.6, 3.8)
    x, by_tree = _round_positions(history)
    losses = np.array([own.loss for own in history.rounds])
    for number, own in enumerate(history.rounds):
        if own.tree_losses:
            ax.plot(
                x[number - 1] + np.arange(len(own.tree_losses) + 1), [losses[number - 1], *own.tree_losses],
                color=COLOURS[0], linewidth=0.8, alpha=0.7,
                label="after each tree" if number == by_tree else "_",
            )  # fmt: skip
    trained = [number for number, own in enumerate(history.rounds) if own.training_loss is not None]
    if history.evaluated_on == TRAINING_ROWS:  # the losses are those of training rows themselves
        trained = []
    if trained:
        training = [history.rounds[number].training_loss for number in trained]
        style = {"color": COLOURS[1], "linestyle": "--", "marker": "s", "markersize": 4}
        ax.plot(x[trained], np.array(training, np.float64), label="training rows", **style)  # type: ignore[arg-type]
    joined: dict[str, Any] = {"linestyle": "none" if by_tree else "-", "marker": "o", "markersize": 5}
    ax.plot(x, losses, color=COLOURS[0], label=history.evaluated_on, **joined)
    ax.axvline(x[history.chosen], color=GREY, linewidth=1.0, zorder=0)
    ax.plot(
        [x[history.chosen]], [losses[history.chosen]], linestyle="none", marker="o", markersize=11, fillstyle="none",
        color=INK, label=f"chosen: {'no correction' if not history.chosen else f'round {history.chosen}'}",
    )  # fmt: skip
    if not by_tree:
        ax.locator_params(axis="x", integer=True)
    return style_axes(ax, title, "trees" if by_tree else "round", history.measure, legend=True)


def _history_of(fit: Any) -> History:
    for history in (fit, getattr(fit, "history_", None), getattr(fit, "history", None)):
        if isinstance(history, History):
            return history
    raise ArgumentError(
        f"fit must be a fitted calibrator, a Model or a History; got {type(fit).__name__}",
        hint="write it as tu.figures.draw_history(fix), after fix.fit(frame, outcome)",
        parameter="fit",
    )


def _round_positions(history: History) -> tuple[FloatArray, int]:
    """Return the position of every round, and the first round with a loss per tree, 0 if there is none.

    With losses per tree, a round is at its number of trees, counted over all rounds; else at its own number.
    """
    first = next((number for number, own in enumerate(history.rounds) if own.tree_losses), 0)
    if not first:
        return np.arange(len(history.rounds), dtype=np.float64), 0
    counts = [own.trees for own in history.rounds]
    return np.cumsum(counts).astype(np.float64), first
