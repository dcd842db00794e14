"""What a build adds to the metadata: the project's URLs, and a long description whose links work.

An index shows the README away from the files that it links to. PYWORKER_REPOSITORY names where they are
published, such as https://git.example.org/team/pyworker; then the links lead to the files of this version
there. Without it the links become plain text, and the metadata has no URLs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)")
PAGES = {"Documentation": "docs/start.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}


def long_description(readme: str, files: str | None) -> str:
    """The README with links to `files`, the URL of the files of this version; without it, with none."""
    return RELATIVE.sub(lambda link: f"[{link[1]}]({files}/{link[2]})" if files else link[1], readme)


def urls(repository: str, files: str) -> dict[str, str]:
    pages = {name: f"{files}/{page}" for name, page in PAGES.items()}
    return {"Repository": repository, "Issues": f"{repository}/issues", **pages}


class Metadata(MetadataHookInterface):
    """Fills in `readme` and `urls`, which pyproject.toml leaves to it."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("PYWORKER_REPOSITORY", "").rstrip("/") or None
        if repository and not repository.startswith("https://"):
            raise ValueError(f"PYWORKER_REPOSITORY must begin with https://, got {repository!r}")
        files = repository and f"{repository}/blob/v{metadata['version']}"
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(readme, files)}
        metadata["urls"] = urls(repository, files) if repository and files else {}
