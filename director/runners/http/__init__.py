"""What runners of servers that speak plain HTTP have in common. Never knows one kind of them."""
