"""Audits: tests of the calibration of scores over all rows and on every segment."""
