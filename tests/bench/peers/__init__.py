"""Run one HTTP job under each peer, by the peer's own Python or Node, with the fastest client that suits it."""
