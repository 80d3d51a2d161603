"""Kill workers and Redis under Director and under other queues, and count what each loses and runs twice."""
