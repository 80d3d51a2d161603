"""Hold what an API process keeps for one Redis server: it lives as long as the process, and knows no HTTP."""
