"""What is measured, one module a study."""
