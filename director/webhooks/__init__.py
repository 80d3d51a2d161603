"""Send webhooks: decide where one may go, sign it, deliver it, and schedule the next attempt."""
