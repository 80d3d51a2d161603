"""Accept files from callers, and serve them and the files of outputs at signed addresses."""
