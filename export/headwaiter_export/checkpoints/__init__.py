"""How a checkpoint is read: its settings, weights, head, modules, texts and images."""
