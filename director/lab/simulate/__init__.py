"""Simulate a queue: play recorded or generated traffic through its scripts, with a virtual clock and another policy."""
