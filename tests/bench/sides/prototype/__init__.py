"""The shape of ours with nothing in it: a ceiling for what can be reached with the same clients.

POST with wait → XADD → claim → POST to the model server → finish → answer. No leases, no fencing, no retries, no
events, no webhooks, no accounts, no checks of anything. Never to be used for work.
"""
