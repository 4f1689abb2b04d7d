"""LoRe, local recalibration: scores are corrected by the outcomes of nearby rows in a space of features."""
