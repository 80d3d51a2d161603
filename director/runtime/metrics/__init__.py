"""What the processes count of themselves: one table of all metrics, and the registry that is made of it."""
