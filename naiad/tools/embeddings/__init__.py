"""`naiad init embeddings`: a repository that serves an embedding model at /v1/embeddings."""
