"""Everything on one machine, for a newcomer: what `director up` starts, watches and ends.

Starts the parts as processes of their own, exactly as they would run in production: nothing here serves a request.
"""
