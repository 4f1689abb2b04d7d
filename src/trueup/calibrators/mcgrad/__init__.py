"""Fixes made of boosted trees: MCGrad and DepthTwo."""
