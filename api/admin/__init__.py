"""What operators do over HTTP, with tokens of the scope admin."""
