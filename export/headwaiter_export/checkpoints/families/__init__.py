"""The families of checkpoints: how each names its settings and tensors, and which tensors it folds."""
