"""Local recalibration: the outcomes of rows nearby, in a space of features (LoRe)."""
