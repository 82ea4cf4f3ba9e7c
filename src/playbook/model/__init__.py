"""The transformer. It knows nothing of parallelism."""
