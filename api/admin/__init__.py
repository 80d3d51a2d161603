"""Serve operators over HTTP, for tokens with the scope admin."""
