"""The models that are loaded: how a bundle becomes a model that serves, and the tokenizer of a model."""
