"""Exports of a model to ONNX, SQL and C, each checked against the model row by row."""
