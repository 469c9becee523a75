"""Other servers with the same model under the same load, each in its own environment: `make bench-peers`."""
