"""All SQL that Python sends. No other directory holds SQL text; a test checks that."""
