"""Serve the operators' page. A browser runs its files, and nothing is rendered per request."""
