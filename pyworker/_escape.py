"""Escapes foreign text for a terminal: names, keys and errors must not send control sequences."""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1, changes of direction, line ends, half surrogate pairs.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def shown(text: str) -> str:
    """The text with control characters escaped (\\x1b), except tabs and newlines."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def shown_json(text: str) -> str:
    """The same for JSON text, which stays valid: control characters occur only in JSON strings."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
