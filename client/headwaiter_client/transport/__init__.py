"""How a call travels: channels, replicas, retries, TLS."""
