"""What a picture shows, for tests of pictures."""

from __future__ import annotations


def lines(ax):
    return [line for line in ax.get_lines() if line.get_linestyle() != "None"]


def dots(ax):
    return [line for line in ax.get_lines() if line.get_linestyle() == "None"]


def words(ax):
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def named(ax, start):
    """Give the one thing in a picture whose name starts so."""
    (found,) = (one for one in (*ax.get_lines(), *ax.collections, *ax.patches) if str(one.get_label()).startswith(start))
    return found
