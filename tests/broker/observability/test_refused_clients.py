"""RefusedClients: who was refused last, and how much is remembered at most."""

from taipan.broker.observability import refused_clients
from taipan.broker.observability.refused_clients import RefusedClient, RefusedClients


def refuse(refused: RefusedClients, at: float, client_id: str, host: str = "192.0.2.1", detail: str = "") -> None:
    refused.add(RefusedClient(at, client_id, "u", host, "tcp", "banned", "/banned", detail))


def test_the_same_again_is_counted_and_comes_first() -> None:
    refused = RefusedClients()
    refuse(refused, 1.0, "a")
    refuse(refused, 2.0, "b")
    refuse(refused, 3.0, "a", detail="again")
    first, second = refused.latest()
    assert (first.client_id, first.count, first.at, first.last_at, first.detail) == ("a", 2, 1.0, 3.0, "again")
    assert (second.client_id, second.count) == ("b", 1)


def test_memory_is_bounded() -> None:
    refused = RefusedClients()
    for number in range(1000):
        refuse(refused, float(number), f"c{number}", f"host{number}", "d" * 1000)
    assert len(refused) == refused_clients.MAX_ROWS
    assert refused.latest()[0].client_id == "c999"  # who was not refused for longest went first
    refused.add(RefusedClient(1.0, "i" * 65_535, "u" * 65_535, "host", "tcp", "r", "s", "d" * 1000))
    latest = refused.latest()[0]
    assert latest.is_cut and len(latest.client_id) == refused_clients.MAX_NAME == len(latest.username or "")
    assert len(latest.detail) < 1000
    # The same long name once more is the same row, and one without a user name is another.
    refused.add(RefusedClient(2.0, "i" * 65_535, "u" * 65_535, "host", "tcp", "r", "s", ""))
    refused.add(RefusedClient(3.0, "i" * 65_535, None, "host", "tcp", "r", "s", ""))
    assert [(each.count, each.username is None) for each in refused.latest()[:2]] == [(1, True), (2, False)]


def test_one_address_does_not_push_out_the_others() -> None:
    refused = RefusedClients()
    refuse(refused, 1.0, "device", "192.0.2.7")
    for number in range(1000):
        refuse(refused, 2.0, f"guess{number}", "192.0.2.66")
    names = [each.client_id for each in refused.latest()]
    assert len(names) == refused_clients.MAX_ROWS_OF_HOST + 1 and names[0] == "guess999" and names[-1] == "device"
    # What is counted of an address goes with its rows.
    for number in range(1000):
        refuse(refused, 3.0, f"c{number}", f"host{number}")
    for number in range(refused_clients.MAX_ROWS_OF_HOST):
        refuse(refused, 4.0, f"later{number}", "192.0.2.66")
    assert sum(each.peer_host == "192.0.2.66" for each in refused.latest()) == refused_clients.MAX_ROWS_OF_HOST
