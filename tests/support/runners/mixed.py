"""Handlers of tests/examples/test_runners.py for `pyworker run`: what the other runners have too."""

import time

import psycopg

from pyworker import task


def see(job):
    with psycopg.connect(autocommit=True) as conn:
        conn.execute(
            "insert into seen (job_id, attempts, task) values (%s, %s, %s)",
            [job.id, job.attempts, job.task_identifier],
        )


@task
def note(payload, job):
    see(job)
    time.sleep(payload.get("ms", 20) / 1000)


@task(delivery="at_most_once")
def deliver(payload, job):
    note.function(payload, job)


@task(sequence_policy={"by_args": ["customer"]})
def in_turn(payload, job):
    note.function(payload, job)


@task(backoff=["0 seconds"])
def flaky(payload, job):
    see(job)
    if job.attempts == 1:
        raise ValueError("not yet")


@task
def book(payload, job):
    see(job)
    with job.transaction() as conn:
        conn.execute("insert into booked values (%s)", [job.id])
        time.sleep(0.02)
