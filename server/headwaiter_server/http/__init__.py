"""HTTP: metrics, health, and requests in the forms of OpenAI's and Text Embeddings Inference's interfaces."""
