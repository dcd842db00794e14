"""The commands of `pyworker`: thin wrappers around SQL functions."""
