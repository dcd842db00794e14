"""Upgrades from each released version: `NAME.sql.gz` is a database that the version of that name made, with
jobs in every state. `python -m tests.upgrade` writes the file of this version, on the day of its release.
Each is upgraded to a version after this one, which has a migration of the tests: later.py."""
