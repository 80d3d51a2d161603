"""Measure the product on this machine: what a call costs, how many there can be, whether the queue is fair, how deep.

Real scripts on a real server; where hours of a queue are played, time is walked through the scripts and nobody waits.
"""

__all__ = ()
