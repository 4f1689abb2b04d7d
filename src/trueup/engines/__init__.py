"""What does the heavy work: LightGBM grows trees, here or on a cluster."""
