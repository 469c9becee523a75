"""Read the inputs of requests with the files of a bundle: texts with its tokenizer, images as it prepares them."""
