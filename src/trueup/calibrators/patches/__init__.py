"""HKRR and Multiaccuracy: a list of patches, each of which shifts the scores of one group."""
