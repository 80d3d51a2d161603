"""Typed access to what is stored: accounts, the catalogue, queues, dead letters, owed webhooks."""
