"""From a table to an honest verdict on every segment."""
