"""Count what a process does, and show it to Prometheus."""
