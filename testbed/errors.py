"""Every fault a user can mend, as a tree.

TestbedError
├── InputError               what was typed or written is wrong; nothing was touched
│   ├── UnitError            a rate, delay, loss, size or CPU share
│   ├── ScenarioError        a VNX XML file
│   └── ConfigError          a sweep's YAML file, or a results folder of another sweep
├── MissingCapability        the machine lacks something; says the command that mends it
├── HostError                a machine did not do what it was told
│   ├── CommandFailed        non-zero exit status
│   ├── CommandTimeout       no end within the time given
│   └── Unreachable          no connection, or a key that is not the pinned one
├── ProvisionError           a cluster did not come up, or does not exist
├── ShapingError             a link does not carry the queue it was given
├── DataError                a data set is missing or its hash is wrong
├── WorkerFailed             training ended early on a node
└── BusyError                another command holds the sweep or the cluster

Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


class TestbedError(Exception):
    """A fault that the user can mend; its message says what was given, expected and to do."""

    __test__ = False  # pytest must not collect it for its name


class InputError(TestbedError):
    """What was typed or written is wrong; nothing was touched."""


class UnitError(InputError):
    """A quantity that cannot be read, such as ``10mbps``."""


class ScenarioError(InputError):
    """A scenario file that cannot be used; the message lists every fault with its line."""


class ConfigError(InputError):
    """A sweep file that cannot be used; the message lists every fault with its line."""


class MissingCapability(TestbedError):
    """The machine lacks something; ``mend`` is the command that brings it."""

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(f"{message}\n  to mend it: {mend}" if mend else message)
        self.mend = mend


class HostError(TestbedError):
    """A machine did not do what it was told."""


class CommandFailed(HostError):
    """A command ended with a non-zero exit status."""

    def __init__(self, host: str, argv: Sequence[str], exit_status: int, stderr: str) -> None:
        said = stderr.strip() or "no message"
        super().__init__(f"{host}: `{' '.join(argv)}` ended with status {exit_status}: {said}")
        self.host = host
        self.argv = tuple(argv)
        self.exit_status = exit_status
        self.stderr = stderr


class CommandTimeout(HostError):
    """A command did not end within its time."""


class Unreachable(HostError):
    """No connection, or the machine answered with a host key that is not the pinned one."""


class ProvisionError(TestbedError):
    """A cluster did not come up, or there is none of that name."""


class ShapingError(TestbedError):
    """A link does not carry the queue that it was given."""


class DataError(TestbedError):
    """A data set is missing, or its bytes are not the published ones."""


class WorkerFailed(TestbedError):
    """Training ended early; ``node`` is the first that failed, the message has its last lines."""

    def __init__(self, node: str, message: str) -> None:
        super().__init__(f"{node}: {message}")
        self.node = node


class BusyError(TestbedError):
    """Another command holds this sweep or cluster."""
