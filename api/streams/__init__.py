"""Predictions as they happen: server-sent events that resume."""
