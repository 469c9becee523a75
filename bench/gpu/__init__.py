"""Checks what only a card can show: that the graphs run on CUDA, are right and fast, and keep their memory."""
