"""Tasks, threads and sleeping loops, for any work."""
