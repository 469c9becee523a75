"""How a call reaches a server: channels, replicas, retries, TLS."""
