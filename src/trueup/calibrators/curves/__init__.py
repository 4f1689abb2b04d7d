"""Fixes that are a curve of the score: the classics, alone or by group."""
