"""Run a process: logs, metrics, tracing, health, signals, loops."""
