"""Replicate's HTTP API over the queue. Nothing runs here."""
