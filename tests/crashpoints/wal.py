"""The records of a write-ahead log, and a log that ends where a crash would end it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

SEGMENT = 16 << 20
LINE = re.compile(
    r"rmgr: (\S+) +len \(rec/tot\): +\d+/ +(\d+), tx: +(\d+), lsn: ([0-9A-F]+)/([0-9A-F]+), .*?desc: (.*)"
)
RELATION = re.compile(r"rel (?:\d+/)+(\d+)")


@dataclass(frozen=True)
class Record:
    lsn: int
    end: int  # where the next one begins
    length: int
    xid: int
    kind: str
    told: str

    @property
    def commits(self) -> bool:
        return self.kind == "Transaction" and self.told.startswith(("COMMIT", "COMMIT_PREPARED"))


def shown(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:08X}"


def records(bindir: Path, log: Path, start: int, relations: dict[int, str]) -> list[Record]:
    """All records from `start` on. The last one ends the log, so it has no end that a crash could leave."""
    command = [str(bindir / "pg_waldump"), "-p", str(log), "-s", shown(start)]
    output = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    found = [match.groups() for match in map(LINE.match, output.splitlines()) if match]
    if not found:
        raise RuntimeError(f"pg_waldump found no record from {shown(start)} on")
    places = [(int(high, 16) << 32) + int(low, 16) for _, _, _, high, low, _ in found]
    return [
        Record(place, end, int(length), int(xid), kind, _told(desc, relations))
        for place, end, (kind, length, xid, _, _, desc) in zip(places, places[1:], found, strict=False)
    ]


def _told(desc: str, relations: dict[int, str]) -> str:
    """INSERT+INIT live_jobs; COMMIT."""
    action = desc.split(" ")[0].rstrip(":;")
    names = dict.fromkeys(relations.get(int(node), node) for node in RELATION.findall(desc))
    return " ".join([action, *names])


def cut(log: Path, target: Path, start: int, end: int, torn: int) -> None:
    """Copies the log up to `end`, and so many bytes of the record that follows: it was being written."""
    for number in range(start // SEGMENT, end // SEGMENT + 1):
        name = f"00000001{number >> 8:08X}{number & 0xFF:08X}"
        keep = min(max(end + torn - number * SEGMENT, 0), SEGMENT)
        with (log / name).open("rb") as source, (target / name).open("wb") as copy:
            copy.write(source.read(keep))
            copy.truncate(SEGMENT)
