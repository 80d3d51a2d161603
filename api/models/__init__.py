"""Serve what can be run: models, versions, deployments, collections, and the search for them."""
