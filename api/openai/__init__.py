"""Serve OpenAI's API over the same queue, at /openai/v1."""
