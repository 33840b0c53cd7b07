"""What iperf3 is told, what is understood of its reports, and how many flows run at once."""

import json

import pytest
from fake_lan import FakeLan

from testbed.errors import CommandTimeout
from testbed.network.iperf3 import Flow, client_argv, measure, parse, server_argv
from testbed.network.shape import apply_shapes
from testbed.scenario.model import Shape

# From a real run (iperf3 3.12, 10 mbit): the sender counted 23 % more than arrived.
REPORT = {
    "start": {},
    "end": {
        "sum_sent": {"bytes": 1469584, "bits_per_second": 11755625.7, "retransmits": 4},
        "sum_received": {"bytes": 1259624, "bits_per_second": 9663305.9, "seconds": 1.04281},
    },
}


def test_a_server_serves_once_at_the_lan_address_only() -> None:
    assert " ".join(server_argv("10.10.0.2", 5203)) == "iperf3 -s -1 -J -B 10.10.0.2 -p 5203"


def test_a_client_says_its_time_congestion_control_and_window() -> None:
    assert " ".join(client_argv("10.10.0.2", 5203, 2.0, window_bytes=16_384)) == (
        "iperf3 -c 10.10.0.2 -p 5203 -J -t 2 -C cubic --connect-timeout 3000 -w 16384"
    )


def test_the_receivers_figures_count() -> None:
    transfer = parse(json.dumps(REPORT))
    assert (transfer.goodput_bps, transfer.seconds) == (9663305.9, 1.04281)
    assert (transfer.received_bytes, transfer.retransmits) == (1259624, 4)
    assert transfer.error is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"start": {}, "end": {}, "error": "unable to connect"}', "iperf3: unable to connect"),
        ("", "wrote no JSON but 'nothing'"),
        ("iperf3: parameter error", "wrote no JSON but 'iperf3: parameter error'"),
        ('{"start": {}, "end": {}}', "lacks 'sum_received'"),
    ],
)
def test_a_report_without_figures_is_an_error_not_a_zero(text: str, words: str) -> None:
    transfer = parse(text)
    assert transfer.goodput_bps is None
    assert words in (transfer.error or "")


def test_flows_that_run_at_once_keep_their_order() -> None:
    lan = FakeLan(nodes=3)
    links = lan.links(Shape(rate_bps=1_000_000), Shape(), Shape(rate_bps=10_000_000))
    apply_shapes([end for link in links for end in link.ends()])
    peers = [link.peer for link in links]
    flows = [Flow(sender=peers[k], receiver=peers[(k + 1) % 3]) for k in range(3)]
    found = [round(t.goodput_bps or 0) for t in measure(flows, 1.0)]
    assert found == [956_407, 9_564_069, 956_407]


def test_a_server_that_cannot_listen_is_named_and_its_client_never_starts() -> None:
    lan = FakeLan(nodes=2)
    first, second = (link.peer for link in lan.links(Shape()))
    elsewhere = type(second)(name="n2", host=second.host, address="10.10.0.9", device="eth1")
    transfer = measure([Flow(sender=first, receiver=elsewhere)], 1.0)[0]
    assert transfer.error == "n2: iperf3: Cannot assign requested address"
    assert lan.hosts["n1"].commands == []


def test_a_server_whose_client_failed_is_ended_and_not_waited_for() -> None:
    lan = FakeLan(nodes=2, cut={"n2"})
    first, second = (link.peer for link in lan.links(Shape()))
    transfer = measure([Flow(sender=first, receiver=second)], 1.0)[0]
    assert transfer.error == "iperf3: unable to connect to server: timed out"
    assert lan.listening == {}


def test_a_client_that_hangs_is_an_error_of_its_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    lan = FakeLan(nodes=2)
    first, second = (link.peer for link in lan.links(Shape()))

    def hang(*_: object) -> None:
        raise CommandTimeout("n1: `iperf3` did not end in 10 s")

    monkeypatch.setattr(lan.hosts["n1"], "_send", hang)
    transfer = measure([Flow(sender=first, receiver=second)], 1.0)[0]
    assert transfer.error == "n1: `iperf3` did not end in 10 s"


def test_no_flows_are_no_measurement() -> None:
    assert measure([], 1.0) == []
