"""The meaning of a call, without I/O: inputs, options, splitting into requests, results."""
