"""Calibrators, the recipes; and the Model that fitting one yields."""
