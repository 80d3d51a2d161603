"""What a user would pick instead: the same HTTP job under each, with its result kept, in an environment of its own.

Each `*_job` is run by its peer's own Python or Node, never by ours: with a number it files so many jobs, and its worker
command runs them. Every one has the fastest client that suits it: aiohttp where it is asynchronous, a kept connection
for each thread where it is not.
"""
