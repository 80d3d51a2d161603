"""All access to Redis: clients, connections, keys and scripts. No other package sends a command."""
