"""The maps from scores to better scores: all that prediction needs. No scikit-learn and no LightGBM here."""
