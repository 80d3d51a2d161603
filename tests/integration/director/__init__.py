"""The director on a real Valkey and real Cog servers."""
