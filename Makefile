# The README's commands by short names. They work without make, too.
.DEFAULT_GOAL := help
.PHONY: help demo quick t test lint schema docs torture interleavings crashpoints nightly release dist mutants fresh
.PHONY: bench failover report slow

install = python3 -m venv --without-pip .venv && python3 -m pip --python .venv install -q -e

older = /usr/lib/postgresql/15/bin

help: ## show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 14

demo: ## start a PostgreSQL and run jobs on it
	$(install) '.[demo]' && .venv/bin/pyworker demo

test: ## run what each change must pass, in ten minutes
	$(install) '.[test]' && .venv/bin/pytest -n auto

slow: ## run what CI runs besides
	$(install) '.[test]' && .venv/bin/pytest -n auto --dist loadfile -m 'slow and not torture'

.venv/bin/pytest:
	$(install) '.[test]'

# Neither generated cases nor plans and costs, which need large tables; nor many jobs or sessions.
long = proof or plans or walks or history or sweep or docs or mutants or install or costs or rates \
	or canonical or lifecycle or sessions or once or release.py or hundred or thousand or 1500 \
	or locked_in or python_house

quick: .venv/bin/pytest ## run most tests of adds, claims, ends and queues, in a minute
	.venv/bin/pytest -n auto -q -x tests/sql tests/rules -k "not ($(long))"

t: .venv/bin/pytest ## run the tests of one file: make t F=fail
	.venv/bin/pytest -q -m 'not torture' $(wildcard tests/*/test_$(F).py)

lint: ## check style and types
	$(install) '.[dev]' && .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/pyright

schema: ## write sql/schema.sql, from what the migrations make
	$(install) '.[test]' && PYWORKER_WRITE_SCHEMA=1 .venv/bin/pytest -q tests/rules/test_schema.py

docs: ## build the documentation into site/
	$(install) '.[docs]' && .venv/bin/python docs/site/build.py

torture: ## run the long tests: crashes, races, load
	$(install) '.[test]' && .venv/bin/pytest -n auto -m torture

interleavings: ## run each two calls at once, in many orders of their statements, and see that mutants are noticed
	$(install) '.[test]' && .venv/bin/python -m tests.interleavings --each 1 --sample 10 --seed $$(date +%j)
	.venv/bin/python -m tests.interleavings mutants

crashpoints: ## crash PostgreSQL after each record of its log, under a script that calls each verb
	$(install) '.[test]' && .venv/bin/python -m tests.crashpoints --all

failover: ## lose the leader of a cluster under Patroni under load; dumps, pg_upgrade, history elsewhere
	$(install) '.[test]' && .venv/bin/pytest -m 'torture or not torture' -s tests/failover

nightly: ## run everything for hours: the README's last section has the figures
	$(install) '.[test]'
	PYWORKER_WALKS=50 PYWORKER_CRON_CASES=100000 PYWORKER_EXAMPLES=1000 PYWORKER_MODEL_EXAMPLES=1000 PYWORKER_MODEL_STEPS=60 .venv/bin/pytest -n auto -m 'not torture'
	PYWORKER_PAUSE=0.1 .venv/bin/pytest -n 20 tests/sql tests/modules tests/races tests/model tests/stress tests/runner tests/cli tests/ui
	PYWORKER_STALL=0.6 .venv/bin/pytest -n auto
	PYWORKER_ORDER=$$(date +%j) .venv/bin/pytest -n auto
	test ! -x $(older)/postgres || PYWORKER_PG_BIN=$(older) .venv/bin/pytest -n auto -m 'not torture' tests/sql tests/modules tests/races tests/model tests/stress
	PYWORKER_TORTURE_SECONDS=3600 .venv/bin/pytest -m torture tests/torture/test_torture.py -k record
	PYWORKER_TORTURE_SECONDS=900 .venv/bin/pytest -m torture tests/torture -k "not record and not swarm"
	PYWORKER_TORTURE_SECONDS=300 .venv/bin/pytest -m torture tests/torture/test_swarm.py
	.venv/bin/python -m tests.interleavings --each 1 --seed $$(date +%j)
	.venv/bin/python -m tests.interleavings --each 1 --sample 10 --seed $$(date +%j) --levels rr,ssi \
		--ends commit-commit,rollback-commit,commit-rollback
	.venv/bin/python -m tests.interleavings --triples 500 --sample --seed $$(date +%j)
	.venv/bin/python -m tests.crashpoints --all --seed $$(date +%j)
	PYWORKER_KILLS=2000 PYWORKER_CRASHES=200 PYWORKER_CUTS=5000 PYWORKER_FUZZ=1000000 PYWORKER_TORTURE_SECONDS=300 PYWORKER_FAILOVERS=5 \
		.venv/bin/pytest -n auto -m torture --ignore tests/torture

release: nightly mutants ## the same, the mutants, and how long recovery takes
	.venv/bin/python bench/recovery.py --rounds 100

dist: ## build the wheel and the source distribution into dist/: see CONTRIBUTING.md
	$(install) '.[test]'
	rm -rf dist && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) .venv/bin/python -m hatchling build

mutants: ## take one guard after the other out of the SQL, and see that a test notices
	$(install) '.[test]' && .venv/bin/python -m tests.mutants

fresh: ## try the README's commands on a bare Debian (needs root and debootstrap)
	.ci/fresh-machine.sh

bench: ## compare with other job queues, on one PostgreSQL (bench/README.md)
	$(install) '.[bench]' && .venv/bin/python bench/run.py
	.venv/bin/python bench/fleet.py

report: ## run pyworker and other job queues under faults, and write docs/reliability.md
	$(install) '.[test]' && .venv/bin/python -m tests.reliability report
