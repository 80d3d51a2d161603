"""Define predictions, their settings and their formats. This package runs nothing and imports no other package."""
