"""Typed access to what is stored. Every method that asks Redis raises BackendUnavailable while Redis cannot answer."""
