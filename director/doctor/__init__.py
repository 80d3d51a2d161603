"""Is the server good enough, and is the service round it whole? `look` reads, `checks` judges; nothing is changed."""
