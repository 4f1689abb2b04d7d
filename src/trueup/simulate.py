"""Populations with a known truth: the door to `trueup.data.simulate`, for ``from trueup.simulate import lending``."""

from trueup.data.simulate import *  # noqa: F403
from trueup.data.simulate import __all__ as __all__
