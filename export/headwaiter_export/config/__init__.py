"""What an encoder is: the fields of its configuration, their checks, and the presets."""
