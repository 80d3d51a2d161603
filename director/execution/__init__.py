"""One claimed prediction, from its claim to its last write."""
