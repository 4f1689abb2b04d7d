"""LSBoost: regressions on the level sets of the score."""
