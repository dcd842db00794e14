"""The commands of `pyworker`, each a few lines around SQL functions."""
