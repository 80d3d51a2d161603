"""Hold one module for each bench: a function from options to figures."""
