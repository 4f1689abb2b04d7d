"""Data: frames and files are read into Tables of validated NumPy columns."""
