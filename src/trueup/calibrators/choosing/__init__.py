"""Auto: which fix, if any."""
