"""Typed access to what is stored: accounts, the catalogue, queues, dead letters, owed webhooks.

Every method that asks Redis raises BackendUnavailable while Redis cannot answer.
"""
