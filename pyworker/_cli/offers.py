"""Remedies name calls of SQL. A person at a shell gets the command that does the same, where there is one."""

from __future__ import annotations

import re
import shlex

_COMMANDS = {
    "retry_job": "retry",
    "cancel_job": "cancel",
    "explain_job": "explain",
    "send_signal": "signal",
    "set_queue": "queues set",
    "resume_queue": "queues resume",
    "resume_sequence": "sequences resume",
    "run_schedule": "schedules run",
    "resume_schedule": "schedules resume",
}
_ARGUMENT = r" ?E?'(?:[^']|'')*'|\d+|null|id|\w+ => true"
_START = r"(?:select (?:\* from )?(?:\w+|\"(?:[^\"]|\"\")+\")\.|(?<![\w.]))"
_CALL = re.compile(
    _START + rf"(?P<verb>{'|'.join(_COMMANDS)})\((?P<arguments>(?:{_ARGUMENT})(?:, ?(?:{_ARGUMENT}))*)\)"
)


def as_commands(remedy: str, schema: str) -> str:
    """Replace each call for which there is a command; the rest stays as it is."""
    return _CALL.sub(lambda call: _command(call, schema), remedy)


def _command(call: re.Match[str], schema: str) -> str:
    if "'-" in call["arguments"]:  # a name that would be taken for an option
        return call[0]
    words = [_word(argument.strip()) for argument in re.findall(_ARGUMENT, call["arguments"])]
    if words[2:] and call["verb"] == "set_queue" and words[2] != "--fair":
        limit, period = words[2], words[3].strip("'").split(" ")
        if len(period) > 2:  # 1 h 30 min, which --rate does not take
            return call[0]
        words[2:4] = ["--rate", f"{limit}/{''.join(period)}"]
    start = "pyworker" if schema == "pyworker" else f"pyworker --schema {shlex.quote(schema)}"
    return " ".join([start, _COMMANDS[call["verb"]], *words])


def _word(argument: str) -> str:
    if argument.endswith("'"):
        text = argument.lstrip("E")[1:-1].replace("''", "'")
        return shlex.quote(text.replace("\\\\", "\\") if argument[0] == "E" else text)
    if argument.endswith("=> true"):
        return f"--{argument.split()[0]}"
    return {"null": "--no-limit", "id": "ID"}.get(argument, argument)
