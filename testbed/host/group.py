"""The same thing on many machines at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(
    act: Callable[[Item], Result], items: Sequence[Item], *, threads: int = 16
) -> list[Result]:
    """Return ``act(item)`` of every item, in order, run at once.

    All are waited for, so that nothing goes on behind the caller's back; then the first
    failure, in the order of the items, is raised.
    """
    if not items:
        return []
    with ThreadPoolExecutor(max_workers=min(threads, len(items))) as pool:
        futures = [pool.submit(act, item) for item in items]
    return [future.result() for future in futures]
