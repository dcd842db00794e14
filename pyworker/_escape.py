"""Text of others on a terminal: what names, keys and errors hold may not steer it."""

from __future__ import annotations

import re

# C0 but tab and newline, DEL, C1, and what changes the direction or the end of a line; half a surrogate pair.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """The text with its control characters written out (\\x1b), but tabs and newlines."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def shown_json(text: str) -> str:
    """The same for a JSON text, which stays what it is: in JSON they stand in strings only, where they may be escaped."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
