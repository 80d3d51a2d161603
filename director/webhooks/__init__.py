"""How the caller is told: where a webhook may go, and one delivery of it."""
