"""What an index holds is refused where it could be too long for it: a row that no claim can park would stop
all claims."""

from __future__ import annotations

import random
from typing import Any

import pytest

ODD = random.Random(7)


def text(length: int, letters: str = "".join(map(chr, range(0x4E00, 0x9FA5)))) -> str:
    """Text that no compression makes shorter, of three bytes a character."""
    return "".join(ODD.choice(letters) for _ in range(length))


LONG_FLAGS = {"one long label": [text(2000)], "many labels": [text(4) for _ in range(300)]}


@pytest.mark.parametrize("flags", LONG_FLAGS)
def test_flags_are_refused_that_would_not_fit_into_the_index_of_a_queue(
    api: Any, actor: Any, flags: str
) -> None:
    a = actor()
    with a.refusal("PW001", "flags must not be longer than 1500 bytes"):
        a.add_job("t", queue_name="q", flags=LONG_FLAGS[flags])
    with a.refusal("PW001", r"specs\[1\]: flags must not be longer than 1500 bytes"):
        a.add_jobs([{"identifier": "t", "flags": LONG_FLAGS[flags]}])


def test_the_longest_names_and_flags_wait_in_a_queue_and_in_a_sequence(api: Any, worker: int) -> None:
    queue, flags = text(128), [text(9) for _ in range(39)]
    jobs = [
        api.add_job(text(128), queue_name=queue, flags=flags, job_key=text(512), **more).id
        for more in ({}, {"sequence_policy": {"key": text(512)}}, {"sequence_policy": {"by_args": True}})
    ]
    api.pause_queue(queue)
    assert api.claim_jobs(worker, 10) == []
    api.resume_queue(queue)
    for job in jobs:
        assert [claimed.id for claimed in api.claim_jobs(worker, 10)] == [job]
        api.finish(job)


def test_a_ref_is_as_long_as_a_job_key(api: Any, actor: Any) -> None:
    a = actor()
    ref = text(512)
    _parent, child = (spec.id for spec in a.add_jobs([
        {"identifier": "t", "ref": ref}, {"identifier": "t", "depends_on": [ref]}
    ]))  # fmt: skip
    assert [row.ref for row in a.rows("select ref from pyworker.dependency_results(%s)", [child])] == [ref]
    for specs in ([{"identifier": "t", "ref": ref + "x"}], [{"identifier": "t", "depends_on": [ref + "x"]}]):
        with a.refusal("PW001", "512"):
            a.add_jobs(specs)
    with a.refusal("PW001", "512"):
        a.extend_batch(child, [{"identifier": "t", "ref": ref + "x"}])
