"""What would have been: recorded or made traffic through the queue's own scripts, on a clock that is walked by hand."""
