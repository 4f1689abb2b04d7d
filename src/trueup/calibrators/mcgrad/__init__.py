"""MCGrad: rounds of boosted trees over the features and the prediction; DepthTwo uses the same trees."""
