"""Which harm the handlers of tortured_tasks.py may do. The names are those of tasks/hostile.py."""

from __future__ import annotations

EVERYWHERE = [
    "Cancel without init", "Discard without init", "Snooze without init", "Snooze by nonsense",
    "Snooze for ever", "Cancel that cannot be shown", "huge Discard", "deep Failed", "Failed that is no JSON",
    "bad notes", "bad text", "bad class", "huge text", "SystemExit", "KeyboardInterrupt", "GeneratorExit",
    "StopIteration", "BaseException", "group", "recursion", "NUL result", "half pair result",
    "closed streams", "copy exits", "copy returns", "copy fails",
]  # fmt: skip
ON_THE_LOOP = [
    "SystemExit in a subtask", "KeyboardInterrupt in a group", "SystemExit in a callback", "stopped loop",
    "cancelled subtask", "cancels itself", "copy awaits", "copy in a subtask",
]  # fmt: skip
ENDS = ["exits with 0", "exits with 78", "breaks what the worker needs"]

DANGERS = [
    *(("menu", how) for how in EVERYWHERE),
    *(("menu_async", how) for how in EVERYWHERE + ON_THE_LOOP),
    *(("ender", how) for how in ENDS),
    *(("ender_async", how) for how in [*ENDS, "breaks the loop"]),
]
