"""Populations with a known truth: public name of `trueup.data.simulate`, for ``from trueup.simulate import lending``."""

from trueup.data.simulate import *  # noqa: F403
from trueup.data.simulate import __all__ as __all__
