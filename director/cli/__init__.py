"""The command line: one file for each group of commands, and one row for each group in main.py."""
