"""Calibrators that correct a score by a curve: Platt, Temperature, Beta, Isotonic, Histogram, and Grouped."""
