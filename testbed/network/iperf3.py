"""TCP goodput between nodes, by iperf3's JSON and its receiver's figures.

The sender's figures are up to 75 % high on a shaped link, because they count what still waits in
its socket (measured, docs/network.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from time import monotonic
from typing import Any

from testbed.errors import CommandTimeout
from testbed.host.base import Completed, Host
from testbed.host.group import in_parallel

PORT = 5201  # iperf3's own default; the k-th flow of a measurement uses PORT + k
LISTEN_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 3.0
MARGIN_S = 6.0  # start of the process, and the exchange of results behind a full queue
MAX_THREADS = 256


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A node as its neighbours on the LAN see it: an address there, on a device."""

    name: str
    host: Host
    address: str
    device: str


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One TCP connection's direction. ``window_bytes`` None: TCP finds its window itself."""

    sender: Peer
    receiver: Peer
    window_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What one flow achieved, at its receiver; all None and an ``error`` when it did not run."""

    goodput_bps: float | None = None
    seconds: float | None = None
    received_bytes: int | None = None
    retransmits: int | None = None
    error: str | None = None


def server_argv(address: str, port: int) -> tuple[str, ...]:
    """Return the command that serves one measurement at an address and then ends."""
    return ("iperf3", "-s", "-1", "-J", "-B", address, "-p", str(port))


def client_argv(
    address: str,
    port: int,
    seconds: float,
    *,
    window_bytes: int | None = None,
    congestion_control: str = "cubic",
) -> tuple[str, ...]:
    """Return the command that sends to a server for some seconds (iperf3 takes whole ones)."""
    window = () if window_bytes is None else ("-w", str(window_bytes))
    return (
        *("iperf3", "-c", address, "-p", str(port), "-J", "-t", str(max(1, round(seconds)))),
        *("-C", congestion_control, "--connect-timeout", str(round(CONNECT_TIMEOUT_S * 1000))),
        *window,
    )


def parse(json_text: str) -> Transfer:
    """Return the receiver's figures from what ``iperf3 -J`` wrote, or its error."""
    try:
        report: dict[str, Any] = json.loads(json_text)
    except ValueError:
        said = json_text.strip() or "nothing"
        return Transfer(error=f"iperf3 wrote no JSON but {said[:200]!r}")
    if "error" in report:  # with -J, iperf3 3.12 then still ends with status 0
        return Transfer(error=f"iperf3: {report['error']}")
    try:
        received = report["end"]["sum_received"]
        return Transfer(
            goodput_bps=float(received["bits_per_second"]),
            seconds=float(received["seconds"]),
            received_bytes=int(received["bytes"]),
            retransmits=report["end"]["sum_sent"].get("retransmits"),
        )
    except (KeyError, TypeError) as error:
        return Transfer(error=f"iperf3's report lacks {error}")


def measure(
    flows: Sequence[Flow],
    seconds: float,
    *,
    port: int = PORT,
    congestion_control: str = "cubic",
) -> list[Transfer]:
    """Return what the flows achieve when all run at the same time, in their order.

    All servers listen before the first client starts. A flow that does not run gives a
    `Transfer` with its error; every wait is bounded, and nothing is left running.
    """
    if not flows:
        return []
    threads = min(MAX_THREADS, len(flows))
    numbered = [(flow, port + index) for index, flow in enumerate(flows)]
    with ThreadPoolExecutor(max_workers=threads) as servers:
        serving = [servers.submit(_serve, flow.receiver, at, seconds) for flow, at in numbered]

        def wait_until_listening(index: int) -> str | None:
            flow, at = numbered[index]
            return _not_listening(flow.receiver.host, at, serving[index])

        def send(index: int) -> Transfer:
            flow, at = numbered[index]
            if deaf[index] is not None:
                return Transfer(error=f"{flow.receiver.name}: {deaf[index]}")
            transfer = _send(flow, at, seconds, congestion_control)
            if transfer.error is not None and not serving[index].done():
                _end_server(flow.receiver, at)
            return transfer

        everyone = range(len(flows))
        deaf = in_parallel(wait_until_listening, everyone, threads=threads)
        return in_parallel(send, everyone, threads=threads)


def _serve(receiver: Peer, port: int, seconds: float) -> Completed | None:
    timeout_s = LISTEN_TIMEOUT_S + CONNECT_TIMEOUT_S + seconds + MARGIN_S
    try:
        return receiver.host.run(
            server_argv(receiver.address, port), timeout_s=timeout_s, check=False
        )
    except CommandTimeout:
        return None  # its client failed, and says why


def _not_listening(host: Host, port: int, server: Future[Completed | None]) -> str | None:
    """Return None as soon as the server listens, or why it never will."""
    deadline = monotonic() + LISTEN_TIMEOUT_S
    pause_s = 0.01
    while monotonic() < deadline:
        if host.run(("ss", "-Hltn", f"sport = :{port}")).stdout.strip():
            return None
        # A condition, not a sleep: a server that cannot bind ends, and we stop at once.
        wait_for([server], timeout=pause_s)
        if server.done():
            done = server.result()
            said = parse(done.stdout).error if done is not None else None
            return said or "the iperf3 server ended before its client came"
        pause_s = min(0.1, 2 * pause_s)
    return f"the iperf3 server does not listen after {LISTEN_TIMEOUT_S:g} s"


def _send(flow: Flow, port: int, seconds: float, congestion_control: str) -> Transfer:
    argv = client_argv(
        flow.receiver.address,
        port,
        seconds,
        window_bytes=flow.window_bytes,
        congestion_control=congestion_control,
    )
    try:
        done = flow.sender.host.run(
            argv, timeout_s=CONNECT_TIMEOUT_S + seconds + MARGIN_S, check=False
        )
    except CommandTimeout as error:
        return Transfer(error=str(error))
    return parse(done.stdout or done.stderr)


def _end_server(receiver: Peer, port: int) -> None:
    """Use up a one-off server whose client never came, from its own node, so that it ends."""
    once = ("-J", "-n", "1K", "--connect-timeout", "1000")
    try:
        receiver.host.run(
            ("iperf3", "-c", receiver.address, "-p", str(port), *once), timeout_s=3.0, check=False
        )
    except CommandTimeout:
        return  # the server's own time limit ends it
