"""Provide the model and the caller of the director's own tests."""
