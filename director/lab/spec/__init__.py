"""The specification of a prediction's claims and end: one page, and the search that tries all of it."""
