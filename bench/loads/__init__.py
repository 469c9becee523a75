"""What benchmarks send: sequences, requests, and how they are offered."""
