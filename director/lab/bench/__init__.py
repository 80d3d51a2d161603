"""Measure what a prediction costs on the service that runs here, and make the load for it."""
