"""Test the director with a real Valkey and real Cog servers."""
