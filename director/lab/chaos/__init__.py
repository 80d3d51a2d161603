"""A fault-injection run: real processes, a seeded nemesis, and a checker that uses only what other parties recorded."""
