"""Explores every interleaving of two sessions inside PL/pgSQL functions: docs/inside/interleavings.md."""
