"""The settings of the server: flags, environment variables, and what the host allows."""
