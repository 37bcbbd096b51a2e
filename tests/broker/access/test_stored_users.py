"""StoredUsers: who is found for a client, and what is kept."""

import msgspec
import pytest

from taipan.broker.access.emqx_hash import EmqxHash
from taipan.broker.access.foreign_hashes import parse_hash
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.stored.users import CLIENT_ID, USERNAME, StoredUser, StoredUsers
from taipan.broker.config import ZoneSettings
from taipan.broker.persistence.tables import Tables
from taipan.broker.session.client_info import ClientInfo
from tests.broker.access.test_foreign_hashes import BCRYPT
from tests.support.clock import Clock
from tests.support.no_package import without

HASH = ScryptHash.create(b"secret", n=16)
OTHER = ScryptHash.create(b"other", n=16)


def client(client_id: str = "c", username: str | None = None) -> ClientInfo:
    return ClientInfo("n@h", ZoneSettings(), client_id=client_id, username=username)


@pytest.fixture
def users() -> StoredUsers:
    return StoredUsers(Tables(), Clock())  # type: ignore[arg-type]


def test_nobody(users: StoredUsers) -> None:
    assert not users.has_users and users.lookup(client(), "ann") is None and users.count(USERNAME) == 0
    assert not users.remove(USERNAME, "ann")


def test_the_user_name_decides_where_it_is_stored(users: StoredUsers) -> None:
    users.put(USERNAME, "ann", HASH, is_superuser=True)
    users.put(CLIENT_ID, "c", OTHER)
    found = users.lookup(client(), "ann")
    assert found is not None and found.password is not None and found.is_superuser and found.renew is None
    assert found.password.fingerprint == HASH.fingerprint
    for username in ("", "bob", "c"):
        found = users.lookup(client(), username)
        assert found is not None and found.password is not None and not found.is_superuser
        assert found.password.fingerprint == OTHER.fingerprint
    assert users.lookup(client("ann"), "") is None


def test_counts_and_times(users: StoredUsers) -> None:
    users.put(USERNAME, "ann", HASH, created_at=7.0)
    users.put(USERNAME, "ann", OTHER)
    users.put(CLIENT_ID, "ann", HASH)
    assert (users.count(USERNAME), users.count(CLIENT_ID)) == (1, 1)
    ann = users.get(USERNAME, "ann")
    assert ann is not None and ann.created_at == 7.0 and ann.password == str(OTHER)
    assert users.remove(USERNAME, "ann") and users.count(USERNAME) == 0 and users.has_users


def test_what_was_restored_counts() -> None:
    tables = Tables()
    users = StoredUsers(tables, Clock())  # type: ignore[arg-type]
    row = StoredUser(USERNAME, "ann", str(HASH))
    tables.recover({"users": {"username:ann": msgspec.msgpack.encode(row)}})
    users.index_restored()
    assert users.count(USERNAME) == 1 and users.has_users and users.get(USERNAME, "ann") == row


def test_a_hash_that_cannot_be_read_opens_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tables = Tables()
    users = StoredUsers(tables, Clock())  # type: ignore[arg-type]
    tables.recover({"users": {"username:ann": msgspec.msgpack.encode(StoredUser(USERNAME, "ann", "nonsense"))}})
    found = users.lookup(client(), "ann")
    assert found is not None and found.password is None
    assert "stored_hash_unreadable" in caplog.text


def test_users_who_cannot_log_in_without_a_package_are_counted(
    users: StoredUsers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number, written in enumerate((*BCRYPT.values(), str(HASH))):
        users.put(USERNAME, str(number), parse_hash(written))
    caplog.clear()
    users.warn_of_missing_package()
    assert not caplog.records
    without(monkeypatch, "bcrypt")
    users.warn_of_missing_package()
    [record] = caplog.records
    assert record.levelname == "WARNING" and "stored_hashes_not_verifiable count=2 " in record.getMessage()
    assert "pip install bcrypt" in record.getMessage()
    for number in range(2):
        users.remove(USERNAME, str(number))
    caplog.clear()
    users.warn_of_missing_package()
    assert not caplog.records


def test_an_operator_wins_over_a_renewal(users: StoredUsers) -> None:
    users.put(USERNAME, "ann", EmqxHash.read(b"secret", salted=False))
    found = users.lookup(client(), "ann")
    assert found is not None and found.renew is not None
    users.put(USERNAME, "ann", OTHER)
    found.renew(HASH)
    ann = users.get(USERNAME, "ann")
    assert ann is not None and ann.password == str(OTHER)
