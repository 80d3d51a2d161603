"""What every process of the product needs: logs, metrics, tracing, health, signals, loops."""
