"""Serve several Redis servers behind one API: place new work, and find the site of each prediction."""
