"""Figures of results: the public name of `trueup.reports.figures`, for ``from trueup.figures import draw_roc``."""

from trueup.reports.figures import *  # noqa: F403
from trueup.reports.figures import __all__ as __all__
