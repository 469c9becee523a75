"""The metrics, and what counts and times requests, batches and models for them."""
