"""What the machine may say: jobs to add, policies, definitions of tasks."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from tests.model.state import HOUR
from tests.support.states import ENDED, LIVE, REQUIRED

conflicts = st.sampled_from([None, "reject", "ignore", "replace", "replace_except_schedule"])
ojs = st.fixed_dictionaries(
    {"keys": st.just(["args"])},
    optional={
        "on_conflict": conflicts.filter(bool),
        "states": st.sampled_from(
            [["available"], ["scheduled", "running"], [*LIVE, "completed"], [*LIVE, *ENDED], []]
        ),
        "period": st.just("PT150M"),
    },
)
river = st.fixed_dictionaries(
    {"by_args": st.just(True)},
    optional={
        "on_conflict": conflicts.filter(bool),
        "by_state": st.sampled_from([REQUIRED, LIVE, [*REQUIRED, "completed"], [*LIVE, *ENDED]]),
    },
)
sequences = st.fixed_dictionaries(
    {}, optional={
        "key": st.sampled_from(["s", "s", "r"]), "continue_on_cancelled": st.booleans(),
        "continue_on_discarded": st.booleans()
    }
)  # fmt: skip
keys = st.sampled_from(["a", "b"])
LIMITED = ["h:1", "g:1", "h:2", "g:2", "h:1", "r", "f:1", "h:3"]
queues = st.sampled_from(["q", "q", "q", "p", "f:1", "r", "r", "default", "g:1", "g:2", "h:1", "h:2"])
hours = st.sampled_from([-1, 1.5, 1.5, 3.5])
plain = {
    "payload": st.sampled_from([{"n": 1}, {"n": 2}, [1], [2]]),
    "queue": queues,
    "run_at": hours,
    "max_attempts": st.sampled_from([1, 2]),
    "priority": st.sampled_from([-1, 1]),
    "flags": st.just(["f"]),
    "delivery": st.sampled_from(["at_most_once", "at_least_once"]),
}
tasks = {"task": st.sampled_from(["t", "t", "u", "v"])}
modes = st.sampled_from(["replace", "preserve_run_at", "unsafe_dedupe"])
keyed = {**tasks, "key": keys, "mode": modes}
kinds = [
    st.fixed_dictionaries(tasks, optional=plain),
    st.fixed_dictionaries({**tasks, "sequence": sequences}, optional=plain),
    st.fixed_dictionaries(keyed, optional={**plain, "sequence": sequences}),
    st.fixed_dictionaries({**tasks, "unique": ojs | river}, optional={**plain, "sequence": sequences}),
]
refused = st.fixed_dictionaries({**tasks, "key": keys, "unique": ojs}, optional=plain)
base = st.sampled_from([*kinds, *kinds, *kinds, refused]).flatmap(lambda kind: kind)
numbers = st.integers(0, 1000)
several = st.lists(numbers, min_size=1, max_size=4)
conditions = st.sampled_from(["success", "success", "end", "failure"])
waits_for = st.fixed_dictionaries(
    {"after": st.lists(st.tuples(numbers, conditions), min_size=1, max_size=3)},
    optional={"on_unmet": st.sampled_from(["cancel", "cancel", "hold"])},
)
# Hours; none of their sums is a whole number, nor the same as one of another kind.
deadlines = st.fixed_dictionaries(
    {},
    optional={
        "expires_at": st.sampled_from([*[1.5, 3.5] * 3, -1]),
        "max_wait": st.sampled_from([0, 2.25, 4.25]),
    },
)
more = st.sampled_from([st.just({}), st.just({}), waits_for, deadlines]).flatmap(lambda more: more)
specs = st.builds(lambda spec, more: {**spec, **more}, base, more)
defined = {
    **{k: plain[k] for k in ("max_attempts", "priority", "queue", "delivery")},
    "sequence": sequences,
    "retention": st.sampled_from([timedelta(0), 48 * HOUR]),
}
definitions = st.sampled_from([{}, {}, {"unique": ojs | river}]).flatmap(
    lambda more: st.fixed_dictionaries({}, optional={**defined, **more})
)
