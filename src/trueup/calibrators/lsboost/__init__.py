"""LSBoost: boosting with one regression per level set of the score."""
