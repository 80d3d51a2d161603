"""What a director holds and how: claims, their leases, and how many it asks for."""
