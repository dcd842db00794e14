"""Handlers as people write them: functions are not all there is."""

from __future__ import annotations

import functools
import logging
import warnings

from pyworker import AsyncJob, Job
from tests.habit.table import habit

log = logging.getLogger(__name__)


def timed(function):
    @functools.wraps(function)
    def timed_call(*args, **kwargs):
        return function(*args, **kwargs)

    return timed_call


def timed_async(function):
    @functools.wraps(function)
    async def timed_call(*args, **kwargs):
        return await function(*args, **kwargs)

    return timed_call


@habit(returns="decorated")
@timed
def a_decorated_handler(payload):
    return "decorated"


@habit(returns="decorated")
@timed_async
async def a_decorated_async_handler(payload, job: AsyncJob):
    return "decorated"


@habit(returns=[{}, "default"])
def a_parameter_with_a_default(payload, name="default"):
    return [payload, name]


@habit(returns="keyword")
def the_job_by_keyword(payload, *, job: Job):
    return "keyword"


@habit(returns="any name")
def the_job_by_its_annotation(payload, me: Job):
    return "any name" if me.id else ""


@habit(returns=[1, 0])
def any_arguments(*args, **kwargs):
    return [len(args), len(kwargs)]


def logged(function):
    def logged_call(*args, **kwargs):
        return function(*args, **kwargs)

    return logged_call


@logged
def _inner(payload):
    return f"got {payload}"


habit(name="a_decorator_without_wraps", payload="it", returns="got it")(_inner)


class Mailer:
    def __init__(self, sender):
        self.sender = sender

    def __call__(self, payload):
        return self.sender

    def send(self, payload):
        return self.sender

    @staticmethod
    def static(payload):
        return "static"


habit(name="a_callable_object", returns="ada")(Mailer("ada"))
habit(name="a_bound_method", returns="bob")(Mailer("bob").send)
habit(name="a_static_method", returns="static")(Mailer.static)
habit(name="a_partial", returns="eve")(functools.partial(lambda payload, sender: sender, sender="eve"))
habit(name="a_lambda", returns="lambda")(lambda payload: "lambda")


@habit(returns="printed")
def prints_and_logs(payload):
    print("printed by a handler")
    log.info("logged by a handler")
    log.error("an error without an exception")
    logging.getLogger().warning("to the root")
    warnings.warn("a warning", stacklevel=1)
    try:
        raise ValueError("in a log")
    except ValueError:
        log.exception("with a traceback")
    return "printed"
