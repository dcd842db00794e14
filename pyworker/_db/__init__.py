"""All SQL that Python sends: the only room with SQL text in it."""
