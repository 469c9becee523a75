"""The paths of other servers' interfaces: each one is a table of fields, and the form of a reply."""
