"""Read the log of all that happens to predictions, and carry it to a file or a receiver."""
