"""Arrays in, numbers out."""

from trueup.metrics.isotonic import isotonic

__all__ = ["isotonic"]
