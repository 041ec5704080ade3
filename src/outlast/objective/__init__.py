"""Losses, their normalisers of the global batch, and the scores of predictions."""
