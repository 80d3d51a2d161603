"""Store the files of outputs and of callers: a small interface, with a folder or a bucket behind it."""
