"""MCGrad: boosted trees over features and prediction; the cascade map, also used by DepthTwo."""
