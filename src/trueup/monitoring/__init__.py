"""Sequential tests of calibration that may be looked at any time."""
