"""What a page of the dashboard consists of."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class Reader(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(response: Any, status: int = 200) -> Reader:
    assert response.status_code == status, response.text
    return Reader(response.text)
