"""Hold what every route stands on: requests, answers, errors, the table of routes, and the reference made of it."""
