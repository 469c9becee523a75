"""What the server says of itself: metrics and the log."""
