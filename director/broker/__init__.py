"""All access to Redis: clients, connections, keys and scripts. Only this package and `director.store` send commands."""
