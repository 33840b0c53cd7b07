"""Brings a cluster up until a moment, says so, and waits to be killed: an owner that dies.

python run_until.py MOMENT BACKEND
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from clusters import lan

from testbed.provision import cluster, leftovers

Act = Callable[..., Any]


def stop(*_: object, **__: object) -> None:
    print("here", flush=True)
    sys.stdin.read()


def then_stop(act: Act) -> Act:
    def acted(*given: Any, **named: Any) -> None:
        act(*given, **named)
        stop()

    return acted


def main(moment: str, backend: str) -> None:
    match moment:
        case "ledger":
            cluster.start_lab = stop
        case "lab":
            cluster.start_switch = stop
        case "switch":
            cluster.start_switch = then_stop(cluster.start_switch)
        case "nodes":
            cluster.attach = stop
        case "detached-nodes":
            cluster.wait_for_ssh = then_stop(cluster.wait_for_ssh)
        case "removing":
            leftovers.cgroup.remove = stop
    up = cluster.bring_up(lan(), backend, detached=moment.startswith("detached"))
    if moment == "removing":
        up.close()
    stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
