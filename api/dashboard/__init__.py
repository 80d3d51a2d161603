"""The page of operators: files that a browser runs, and nothing that is made for each request."""
