"""Know who calls, and how much an account may have."""
