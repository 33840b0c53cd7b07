"""What is checked in a scenario file: one small function per rule, gathered in tables.

structure   how a VNX 2.00 file is built, and which part of it the testbed realises
refused     what VNX refuses although its schema accepts it
traps       what VNX accepts and then does wrong, or not at all
on_host     what depends on the machine that runs VNX
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from testbed.scenario.document import Document, Finding

Rule = Callable[[Document], Iterator[Finding]]
