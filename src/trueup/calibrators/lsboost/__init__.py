"""LSBoost: small learners on the level sets of the score."""
