# The README's commands by short names. They work without make, too.
.DEFAULT_GOAL := help
.PHONY: help demo test lint schema torture mutants fresh bench

install = python3 -m venv --without-pip .venv && python3 -m pip --python .venv install -q -e

help: ## show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 14

demo: ## start a PostgreSQL and run jobs on it
	$(install) '.[demo]' && .venv/bin/pyworker demo

test: ## run all tests, but for the long ones
	$(install) '.[test]' && .venv/bin/pytest

lint: ## check style and types
	$(install) '.[dev]' && .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/pyright

schema: ## write sql/schema.sql anew, from what the migrations make
	$(install) '.[test]' && PYWORKER_WRITE_SCHEMA=1 .venv/bin/pytest tests/house/test_schema.py

torture: ## run the long tests: crashes, races, load
	$(install) '.[test]' && .venv/bin/pytest -m torture

mutants: ## take one guard after the other out of the SQL, and see that a test notices
	$(install) '.[test]' && .venv/bin/python tests/mutants.py

fresh: ## try the README's commands on a bare Debian (needs root and debootstrap)
	.ci/fresh-machine.sh

bench: ## compare with other job queues, on one PostgreSQL (bench/README.md)
	$(install) '.[bench]' && .venv/bin/python bench/run.py
