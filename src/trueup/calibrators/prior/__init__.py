"""Correction of the prior: down-sampling, a stated prevalence, label shift."""
