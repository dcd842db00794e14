"""The playground's files: PostgreSQL as WebAssembly, the queue's SQL, and the scripts beside this file.

npm brings PostgreSQL, in the version and with the checksum of playground/package-lock.json. The
browser loads these files when a visitor asks for them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent / "playground"
BINARIES = ("pglite.wasm", "pglite.data", "initdb.wasm")


def install(target: Path) -> None:
    """Fill the directory `target` with all that the playground loads."""
    target.mkdir(parents=True)
    for script in HERE.glob("*.js"):
        shutil.copy(script, target)
    with tempfile.TemporaryDirectory() as made:
        package = postgres(Path(made))
        (target / "pglite").mkdir()
        for name in (*modules(package / "dist", "index.js"), *BINARIES):
            shutil.copy(package / "dist" / name, target / "pglite" / name)
        shutil.copy(package / "LICENSE", target / "pglite" / "LICENSE")
    (target / "install.sql").write_text(script_of_the_queue(), "utf-8")


def postgres(directory: Path) -> Path:
    """The package of PostgreSQL; npm compares it with the lock file's checksum."""
    npm = shutil.which("npm")
    if not npm:
        sys.exit("the playground needs npm; to build the site without it, give --without-playground")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, directory)
    options = ["--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run([npm, "ci", *options], cwd=directory)
    if done.returncode:
        sys.exit("npm could not install the playground's PostgreSQL (docs/site/playground/package-lock.json)")
    return directory / "node_modules" / "@electric-sql" / "pglite"


def modules(dist: Path, first: str) -> set[str]:
    """A script and those that it imports; the remark about its map is cut off, as maps stay behind."""
    found: set[str] = set()
    wanted = [first]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            text = (dist / name).read_text("utf-8")
            wanted += re.findall(r"(?:from|import)\s*\(?\s*\"\./([\w.-]+\.js)\"", text)
            (dist / name).write_text(re.sub(r"(?m)^//# sourceMappingURL=.*$", "", text), "utf-8")
    return found


def script_of_the_queue() -> str:
    """All that an installation runs, with a clock that the visitor can move."""
    command = [sys.executable, "-m", "pyworker", "migrate", "--sql", "--no-transaction", "--movable-clock"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
