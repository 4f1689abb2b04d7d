"""Matrix scaling of the logits of several classes."""
