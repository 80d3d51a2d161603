"""Where files are kept: a small interface, with a folder or a bucket behind it."""
