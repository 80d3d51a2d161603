"""Measure the product on this machine: what a call costs, whether the queue is fair, and what depth costs it.

Real scripts on a real server; where hours of a queue are played, time is walked through the scripts and nobody waits.
"""

__all__ = ()
