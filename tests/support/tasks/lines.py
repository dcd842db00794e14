"""Tasks of a program that has come from another queue: they run lines of docs/coming-from.md."""

from datetime import timedelta

from pyworker import Job, Snooze, task

CALLED: dict[int, int] = {}


@task(result=True)
def a(payload):
    return "from a"


@task(result=True)
def b(payload, job: Job):
    return eval(payload, {"job": job}) if payload else None


@task(result=True)
def c(payload, job: Job):
    return sorted(job.inputs[one.id] or "" for one in job.inputs.ended)


@task(result=True)
def run_line(payload, job: Job):
    """Runs statements of the page; `result` is what they come to."""

    def function():
        CALLED[job.id] = CALLED.get(job.id, 0) + 1
        return CALLED[job.id]

    names = {"job": job, "function": function, "name": "go", "timeout": timedelta(days=1), "Snooze": Snooze}
    exec(payload, names)
    return names.get("result")
