"""How a checkpoint's tokenizer is built, and compared with that of `transformers`."""
