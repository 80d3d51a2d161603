"""What talks to Redis: clients, connections, keys and scripts. Nothing else sends a command."""
