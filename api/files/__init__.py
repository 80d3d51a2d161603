"""Files: taken from callers, handed out at signed addresses."""
