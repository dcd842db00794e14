"""Promises of @task: names, defaults, signatures, converted payloads. No worker and no database is
needed for them."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from datetime import timedelta
from typing import Any, TypedDict, Union

import msgspec
import pydantic
import pytest

from pyworker import AsyncJob, Job, TaskError, task, tasks


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registry", {})


@dataclasses.dataclass
class Data:
    to: str
    copies: int = 1


class Typed(TypedDict):
    to: str
    copies: int


class Struct(msgspec.Struct):
    to: str
    copies: int = 1


class Model(pydantic.BaseModel):
    to: str
    copies: int = 1


@pydantic.dataclasses.dataclass
class Checked:
    to: str
    copies: int = pydantic.Field(default=1, lt=100)


class Page(pydantic.BaseModel):
    letters: list[Model]


@dataclasses.dataclass
class Mixed:
    """A plain dataclass around a pydantic model."""

    letter: Model


@dataclasses.dataclass
class Tree:
    leaves: list[Tree]


def invoke(made: tasks.Task[..., Any], payload: Any) -> Any:
    """As a worker would."""
    return made.invoke(types.SimpleNamespace(payload=payload))


def test_a_task_is_named_after_its_function_and_still_is_that_function() -> None:
    @task
    def send_email(payload: Any) -> Any:
        """Sends."""
        return payload

    assert (send_email.name, send_email.__name__, send_email.__doc__) == (
        "send_email",
        "send_email",
        "Sends.",
    )
    assert send_email({"to": "a"}) == {"to": "a"}
    assert "send_email" in repr(send_email)


def test_options_are_kept_for_the_database_and_seconds_become_intervals() -> None:
    @task(name="x", max_attempts=3, priority=None, timeout=90, retention=timedelta(days=1), result=True)
    async def handler() -> None: ...

    assert (handler.name, handler.result, handler.is_async) == ("x", True, True)
    expected = {"max_attempts": 3, "timeout": timedelta(seconds=90), "retention": timedelta(days=1)}
    assert handler.options == expected


@pytest.mark.parametrize(
    "decorate", [lambda: task(retries=3), lambda: task(job_key="k"), lambda: task(run_at=None)]
)
def test_an_unknown_option_is_refused_with_those_there_are(decorate: Any) -> None:
    with pytest.raises(
        TypeError,
        match=r"task has no option '(retries|job_key|run_at)' \(known: name, result, batch, backoff, ",
    ):
        decorate()


def test_a_name_may_be_given_by_position() -> None:
    @task("first")
    def handler() -> None: ...

    @task("second", max_attempts=2)
    def other() -> None: ...

    assert (handler.name, other.name, other.options) == ("first", "second", {"max_attempts": 2})
    assert list(tasks.registered()) == ["first", "second"]


def send(channel: str, payload: Data, job: Any = None) -> Any:
    return channel, payload, job


async def send_async(channel: str, payload: Data) -> Any:
    return channel, payload


class Sender:
    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.name, self.options, self.invoke, self.add = "not", "to", "be", "seen"  # what a task has, too

    def __call__(self, payload: Data, job: Any) -> Any:
        return self.channel, payload, job


class AsyncSender:
    async def __call__(self, payload: Data) -> Any: ...


class Yields:
    def __call__(self, payload: Data) -> Any:
        yield 1


def test_a_partial_is_a_handler() -> None:
    made = task("by mail")(functools.partial(send, "mail"))
    job = types.SimpleNamespace(payload={"to": "a"})
    assert made.invoke(job) == ("mail", Data("a"), job)
    assert (made.name, made.is_async, made.module) == ("by mail", False, __name__)
    assert "by mail" in repr(made)
    assert task(functools.partial(functools.partial(send_async), "mail")).is_async


def test_a_partial_is_named_after_its_function_unless_it_is_told_otherwise() -> None:
    assert task(functools.partial(send, "mail")).name == "send"


def test_an_object_that_can_be_called_is_a_handler() -> None:
    made = task(Sender("sms"))
    job = types.SimpleNamespace(payload={"to": "a"})
    assert made.invoke(job) == ("sms", Data("a"), job)
    assert (made.name, made.options, made.is_async, made.module) == ("Sender", {}, False, __name__)
    assert task(AsyncSender()).is_async
    assert task("method")(Sender("sms").__call__).invoke(job) == ("sms", Data("a"), job)
    with pytest.raises(TaskError, match="would not be run to its end"):
        _ = task(Yields()).invoke


def test_two_partials_of_one_function_need_two_names() -> None:
    task(functools.partial(send, "mail"))
    with pytest.raises(TaskError, match="two tasks are named 'send'"):
        task(name="send")(Sender("sms"))


@pytest.mark.parametrize(
    ("decorate", "words"),
    [
        (lambda: task(5), "task: a handler is a function or another object that can be called, got 5"),  # type: ignore[call-overload]
        (lambda: task(Data), r"task: a handler is a function .*, got <class '.*Data'>"),
        (lambda: task("x")(None), r"task: a handler is a function .*, got None"),  # type: ignore[arg-type]
        (lambda: task(task("x")(Sender("a"))), r"task: <task x \(.*Sender\)> is a task already"),
        (lambda: task("x", name="y"), "task: two names were given, 'x' and 'y'"),
        (lambda: task(name=5), "task: name must be a string that is not empty, got 5"),  # type: ignore[call-overload]
        (lambda: task(""), "task: name must be a string that is not empty, got ''"),
        (lambda: task(unique={}), "task has no option 'unique'"),  # type: ignore[call-overload]
        (lambda: tasks.cron("* * * * *", sequence={}), "cron has no option 'sequence'"),  # type: ignore[call-arg]
    ],
    ids=lambda value: None,
)
def test_what_is_no_handler_or_no_name_is_refused_in_words(decorate: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"^{words}"):
        decorate()


def test_two_tasks_cannot_have_one_name() -> None:
    @task
    def one() -> None: ...

    with pytest.raises(
        TaskError, match=r"two tasks are named 'one': .*one.* and .*other.*; give one of them name="
    ):

        @task(name="one")
        def other() -> None: ...


def test_a_module_may_be_imported_again() -> None:
    def define() -> None:
        @task
        def again() -> None: ...

    define()
    define()


@pytest.mark.parametrize(
    ("parameters", "takes"),
    [
        ("", []),
        ("payload", ["payload"]),
        ("anything", ["payload"]),
        ("payload, /", ["payload"]),
        ("job", ["job"]),
        ("payload, job", ["payload", "job"]),
        ("payload, *, job", ["payload", "job"]),
        ("payload, j: Job", ["payload", "job"]),
        ("payload, j: AsyncJob", ["payload", "job"]),
        ("j: Job", ["job"]),
        ("payload, extra=1", ["payload"]),
        ("payload=None, *args, **kwargs", ["payload"]),
    ],
)
def test_a_handler_gets_what_it_asks_for(parameters: str, takes: list[str]) -> None:
    space: dict[str, Any] = {"Job": Job, "AsyncJob": AsyncJob}
    exec(f"def handler({parameters}): return locals()", space)
    job = types.SimpleNamespace(payload={"a": 1})
    got = task(space["handler"]).invoke(job)
    assert [kind for kind, value in (("payload", {"a": 1}), ("job", job)) if value in got.values()] == takes


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("a, b", "parameter 'b' has nothing to fill it"),
        ("payload, job, c", "parameter 'c' has nothing to fill it"),
        ("job, payload", "the payload must be its first parameter"),
        ("payload, *, other", "parameter 'other' has nothing to fill it"),
        ("payload: Missing", "its annotations cannot be resolved: name 'Missing' is not defined"),
        ("payload: 'list[Missing]'", "its annotations cannot be resolved: name 'Missing' is not defined"),
    ],
)
def test_a_signature_that_a_worker_cannot_call_is_refused(parameters: str, words: str) -> None:
    space: dict[str, Any] = {"__name__": "mine"}
    exec(f"from __future__ import annotations\ndef handler({parameters}): ...", space)
    with pytest.raises(TaskError, match=f"<task handler \\(mine.handler\\)>: {words}"):
        _ = task(space["handler"]).invoke


def test_a_wrapped_handler_shows_its_own_signature() -> None:
    elsewhere: dict[str, Any] = {"functools": functools}  # a decorator of another module
    exec(
        "def logged(function):\n"
        "    @functools.wraps(function)\n"
        "    def wrapper(*args, **kwargs): return function(*args, **kwargs)\n"
        "    return wrapper",
        elsewhere,
    )

    @task
    @elsewhere["logged"]
    def handler(payload: Data) -> Any:
        return payload

    assert invoke(handler, {"to": "a"}) == Data("a")


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_handler_that_yields_is_refused(kind: str) -> None:
    space: dict[str, Any] = {}
    exec(f"{kind} handler(): yield", space)
    with pytest.raises(TaskError, match="would not be run to its end"):
        _ = task(space["handler"]).invoke


@pytest.mark.parametrize("hint", [Data | Typed | Struct], ids=str)
def test_an_annotation_that_no_payload_can_become_is_refused(hint: Any) -> None:
    def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = hint
    with pytest.raises(TaskError, match="payloads cannot be converted to its annotation: "):
        _ = task(handler).invoke


@pytest.mark.parametrize(
    ("hint", "payload", "expected"),
    [
        (Data, {"to": "a"}, Data("a")),
        (Typed, {"to": "a", "copies": 2}, {"to": "a", "copies": 2}),
        (Struct, {"to": "a"}, Struct("a")),
        (Model, {"to": "a", "copies": "2"}, Model(to="a", copies=2)),
        (Checked, {"to": "a"}, Checked("a")),
        (Page, {"letters": [{"to": "a"}]}, Page(letters=[Model(to="a")])),
        (Mixed, {"letter": {"to": "a"}}, Mixed(Model(to="a"))),
        (list[Data], [{"to": "a"}, {"to": "b"}], [Data("a"), Data("b")]),
        (list[Model], [{"to": "a"}], [Model(to="a")]),
        (Data | None, {"to": "a"}, Data("a")),
        (Data | None, None, None),
        (Union[Model, None], {"to": "a"}, Model(to="a")),  # noqa: UP007
        (dict[str, Data], {"x": {"to": "a"}}, {"x": Data("a")}),
        (Tree, {"leaves": [{"leaves": []}]}, Tree([Tree([])])),
        (dict, {"to": 1}, {"to": 1}),
        (dict[str, Any], {"to": 1}, {"to": 1}),
        (list[int], [1], [1]),
        (str, "x", "x"),
        (Any, {"to": 1}, {"to": 1}),
    ],
    ids=str,
)
def test_a_payload_becomes_what_its_annotation_says(hint: Any, payload: Any, expected: Any) -> None:
    def handler(payload: Any) -> Any:
        return payload

    handler.__annotations__["payload"] = hint
    assert invoke(task(handler), payload) == expected


@pytest.mark.parametrize(
    "hint", [Data, Typed, Struct, Model, Checked, list[Data], list[Model], Data | None], ids=str
)
@pytest.mark.parametrize(
    "wrong", [{"to": ["canary"], "copies": 1}, {"copies": "canary"}, ["canary"], "canary"]
)
def test_a_payload_that_does_not_fit_is_refused_without_showing_it(hint: Any, wrong: Any) -> None:
    def handler(payload: Any) -> Any:
        raise AssertionError("called")

    handler.__annotations__["payload"] = hint
    with pytest.raises(ValueError, match="the payload does not fit") as caught:
        invoke(task(handler), wrong)
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_validators_of_pydantic_dataclasses_are_heard() -> None:
    @task
    def handler(payload: Checked) -> Any:
        return payload

    with pytest.raises(ValueError, match=r"less than 100 - at `copies`"):
        invoke(handler, {"to": "a", "copies": 100})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "no function with @task was found in mine"),
        ("1 +", "module 'mine' cannot be imported: SyntaxError: "),
        ("raise SystemExit(3)", "module 'mine' cannot be imported: SystemExit: 3"),
        ("import mine.inner", "there is no module 'mine'|module 'mine' cannot be imported"),
        ("from pyworker import task\n@task\ndef f(a, b): pass", "parameter 'b' has nothing to fill it"),
        (
            "from pyworker import task\n@task(name='f')\ndef a(): pass\n@task(name='f')\ndef b(): pass",
            "^two tasks are named 'f': <task f .mine.a.> and <task f .mine.b.>; give one of them name=…$",
        ),
    ],
)
def test_a_module_that_cannot_be_used_says_why(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(TaskError, match=words):
        tasks.load(["mine"])
    sys.modules.pop("mine", None)
