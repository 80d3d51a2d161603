"""A fault-injection run: real processes, a seeded nemesis, and a checker that believes only what others wrote down."""
