"""Learners that calibrators are built from: trees by LightGBM, regressions on level sets."""
