"""What a call means, without any I/O: inputs, options, splitting into requests, results."""
