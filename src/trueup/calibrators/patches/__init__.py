"""Fixes that are a list of patches: HKRR and Multiaccuracy."""
