"""Parts of a matplotlib figure, for tests of figures."""

from __future__ import annotations


def lines(ax):
    return [line for line in ax.get_lines() if line.get_linestyle() != "None"]


def dots(ax):
    return [line for line in ax.get_lines() if line.get_linestyle() == "None"]


def legend_texts(ax):
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def labelled(ax, start):
    """Return the only artist whose label starts with this text."""
    (artist,) = (
        item for item in (*ax.get_lines(), *ax.collections, *ax.patches) if str(item.get_label()).startswith(start)
    )
    return artist
