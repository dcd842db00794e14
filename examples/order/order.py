"""An order as a flow of jobs:

reserve → charge (at most once) → approve (a human says so) → ship, mail, invoice → done

python order.py add 17          # adds the flow of order 17, prints the id of each job
pyworker run order              # runs it, until it waits for the approval
pyworker signal ID approved '{"by": "ann"}'      # ID: of the job `approve`
"""

import os
import sys
from datetime import timedelta

import psycopg

import pyworker
from pyworker import Cancel, Job, task

TABLES = """
create table if not exists orders (id bigint primary key, reservation text, state text not null);
create table if not exists events (order_id bigint not null, what text not null)
"""


@task(result=True)
def reserve(order, job: Job):
    """The reservation and the step are one commit: however often this runs, it reserves once."""
    with job.step_transaction("reservation") as step:
        if not step.done:
            step.result = f"R{order['id']}"
            step.connection.execute(
                "insert into orders values (%s, %s, 'reserved')", [order["id"], step.result]
            )
    return step.result


@task(result=True, delivery="at_most_once")
def charge(order, job: Job):
    """If the worker dies in here, the job is discarded as `lost`, and a person decides."""
    tell(job, order, f"charged for {job.inputs['reserve']}")
    return {"receipt": f"C{order['id']}"}


@task(result=True)
def approve(order, job: Job):
    """Waits for a person, without a process."""
    answer = job.wait_for("approved", timeout=timedelta(days=3))
    if answer is None:
        raise Cancel("it was not approved in three days")
    return answer["by"]


@task
def ship(order, job: Job):
    tell(job, order, f"shipped, approved by {job.inputs['approve']}")


@task
def mail(order, job: Job):
    tell(job, order, "mailed")


@task
def invoice(order, job: Job):
    tell(job, order, f"invoiced with receipt {job.inputs['charge']['receipt']}")


@task
def done(order, job: Job):
    with job.transaction() as conn:
        conn.execute("update orders set state = 'done' where id = %s", [order["id"]])


def tell(job, order, what):
    """Stands for a call of another service."""
    job.step(what, write, order["id"], what)


def write(order_id, what):
    with psycopg.connect(os.environ.get("DATABASE_URL", "")) as conn:
        conn.execute("insert into events values (%s, %s)", [order_id, what])


def add_order(conn, order_id):
    order = {"id": order_id}
    with pyworker.flow(conn) as flow:
        reserved = flow.add(reserve, order)
        charged = flow.add(charge, order, after=reserved)
        approved = flow.add(approve, order, after=charged)
        sent = [flow.add(each, order, after=[charged, approved]) for each in (ship, mail, invoice)]
        last = flow.add(done, order, after=sent)
    return [reserved, charged, approved, *sent, last]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["add", number] if number.isdecimal():
            with psycopg.connect(os.environ.get("DATABASE_URL", "")) as conn:
                conn.execute(TABLES)
                for made in add_order(conn, int(number)):
                    print(made.id, made.ref)
        case _:
            sys.exit("usage: python order.py add NUMBER")
