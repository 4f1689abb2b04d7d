"""Frames and files become checked columns, once."""
