"""How a bundle is written, compared with PyTorch, and checked."""
