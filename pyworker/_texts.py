"""Texts of exceptions: they may raise, be endless, or hold what PostgreSQL cannot store; and advice."""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import Any

MAX_ERROR_TEXT = 32_000  # characters kept of an error, half from each end
_HERE = os.path.dirname(__file__)
_OURS = (_HERE, os.path.join(_HERE, "_runner"), os.path.join(_HERE, "_db"))
MAX_LINE = 500  # characters of its first line in a log


def first_line(text: str) -> str:
    first, *more = limited(text).strip().split("\n")
    return first if not more and len(first) <= MAX_LINE else f"{first[:MAX_LINE]} …"


def limited(text: str) -> str:
    """The text as PostgreSQL can store it, limited to MAX_ERROR_TEXT by omitting its middle."""
    if len(text) <= MAX_ERROR_TEXT and len(whole := printable(text)) <= MAX_ERROR_TEXT:
        return whole
    half = MAX_ERROR_TEXT // 2
    head, tail = printable(text[:half])[:half], printable(text[-half:])[-half:]
    return f"{head}\n… the middle of {len(text)} characters is left out …\n{tail}"


def name_of(error: BaseException) -> str:
    try:
        return str(type(error).__name__)
    except BaseException:  # raised by its metaclass
        return "an exception"


def text_of(value: Any) -> str:
    try:
        return str(value)
    except BaseException as problem:
        return f"<{type(value).__name__}: its text raises {name_of(problem)}>"


def summary_of(error: BaseException) -> str:
    """The exception's class and its text."""
    try:
        return "".join(traceback.format_exception_only(type(error), error)).strip()
    except BaseException as problem:
        return f"{name_of(error)}: its text cannot be shown ({name_of(problem)})"


def traceback_of(error: BaseException) -> str:
    """The traceback from the handler's frame on."""
    frames: TracebackType | None = error.__traceback__
    while frames and os.path.dirname(frames.tb_frame.f_code.co_filename) in _OURS:
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
        # Lists show the last line, and the drawing of a group ends with dashes.
        return f"{text}{summary_of(error)}\n" if issubclass(type(error), BaseExceptionGroup) else text
    except BaseException as problem:
        where = "".join(traceback.format_tb(frames))
        told = f"{name_of(error)}: its text cannot be shown ({name_of(problem)})"
        return f"Traceback (most recent call last):\n{where}{told}\n"


def printable(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "backslashreplace").decode()


def module_meant(name: str) -> str:
    """For the name of a file, or of a function in a module, as other queues take it."""
    module = name.partition(":")[0].removeprefix("./").removesuffix(".py").replace("/", ".").lstrip(".")
    return f": write {module}" if module and module != name else ""


def project_meant(error: BaseException) -> str:
    """For a module of tasks that needs the applications of a Django project, which are not loaded."""
    if type(error).__module__ != "django.core.exceptions":
        return ""
    return ". For a Django project: manage.py pyworker run, or pyworker run pyworker.django.worker"
