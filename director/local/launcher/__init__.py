"""Start processes of this machine, tell them from others, and end them with all that they started."""
