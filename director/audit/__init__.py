"""Carry the log of every partition to whoever keeps it: a file, a receiver over HTTP, or a sink of one's own."""
