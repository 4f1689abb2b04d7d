"""Calibrators: estimators that fit a correction, and the Model that fitting one yields."""
