"""Calibrators: scikit-learn estimators that fit a correction of predictions, and the Model that is the result of a fit."""
