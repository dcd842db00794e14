"""The documentation's site, built once, and a browser that reads it from a server of this machine."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

BUILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); import build; from pathlib import Path; "
    "sys.exit(build.build(Path(sys.argv[2]), with_playground=sys.argv[3] == 'True'))"
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the playground where npm is and can bring PostgreSQL for it."""
    pytest.importorskip("sphinx")

    def build(with_playground: bool) -> tuple[Path, Any]:
        target = tmp_path_factory.mktemp("site")
        arguments = [str(ROOT / "docs" / "site"), str(target), str(with_playground)]
        command = [sys.executable, "-c", BUILD, *arguments]
        return target, subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    target, done = build(bool(shutil.which("npm")))
    if "npm could not install" in done.stderr:
        target, done = build(False)
    assert (done.returncode, done.stderr) == (0, "")  # warnings are errors: links, headings, pages in no menu
    return target


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test's output is its own."""


@pytest.fixture(scope="session")
def served(site: Path) -> Iterator[str]:
    """Where the site is to be had, as by `python -m http.server`."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def reader(browser: Any, served: str) -> Iterator[Callable[..., Any]]:
    """reader("start.html", width=390) opens a page; what its console complains of, and what it asks
    of another server, fails the test."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def read(path: str, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(
            base_url=served,
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            permissions=["clipboard-read", "clipboard-write"],
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # PostgreSQL starts in four seconds, on a busy machine in forty
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith((served, "blob:", "data:")) else complaints.append(request.url)
            ),
        )
        page.goto(path)
        return page

    yield read
    for context in contexts:
        context.close()
    assert complaints == []
