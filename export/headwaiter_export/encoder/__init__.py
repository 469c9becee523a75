"""The PyTorch modules of an encoder, and the outputs that graphs are compared with."""
