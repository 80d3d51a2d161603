"""Explore the shipped scripts: every order of calls in a small world, on a real Valkey, in virtual time."""
