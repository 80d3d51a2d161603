"""The command line: one file per group of commands. Each reads arguments, calls one room, and prints."""
