"""A ceiling for the same clients: ours without leases, retries, events, webhooks or checks. Never use it for work.

It is frozen: figures beside it are compared over years.
"""
