"""Load bundles: their graphs on every device, their measured cost, and their tokenizers."""
