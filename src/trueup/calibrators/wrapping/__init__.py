"""An estimator and its fix as one scikit-learn estimator."""
