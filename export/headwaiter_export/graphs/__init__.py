"""How graphs are written: layouts, rewrites, precisions, and which graphs a bundle has."""
