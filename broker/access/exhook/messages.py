"""The messages of exhook: classes generated from ``exhook.binpb``, which protoc has generated from ``exhook.proto``."""

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ...session.client_info import ClientInfo, protocol_of
from ...version import product_version

PACKAGE: Final = "emqx.exhook.v1"
SERVICE: Final = f"{PACKAGE}.HookProvider"
_DESCRIPTION: Final = "Taipan"


def _classes() -> dict[str, Any]:
    assert __package__ is not None
    data = files(__package__).joinpath("exhook.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    names: list[str] = []
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
        names.append(file.name)
    made = message_factory.GetMessageClassesForFiles(names, pool)
    return {name.removeprefix(f"{PACKAGE}."): kind for name, kind in made.items()}


CLASSES: Final = _classes()
"""By the name of the message."""

CONTINUE: Final = 0
IGNORE: Final = 1
STOP_AND_RETURN: Final = 2
"""Values of ``ValuedResponse.type``."""
PUBLISH: Final = 0
SUBSCRIBE: Final = 1
"""Values of ``ClientCheckAclRequest.type``."""


def meta(node: str, cluster: str = "") -> Any:
    """Return the part of each request that describes the node."""
    return CLASSES["RequestMeta"](node=node, version=product_version(), sysdescr=_DESCRIPTION, cluster_name=cluster)


def broker_info(uptime: float, now: str) -> Any:
    """``uptime``: seconds. ``now``: the time as text."""
    return CLASSES["BrokerInfo"](
        version=product_version(), sysdescr=_DESCRIPTION, uptime=int(uptime * 1000), datetime=now
    )


def client_info(client: ClientInfo, username: str | None, password: bytes | None = None) -> Any:
    """``username``: the name that the client gives in CONNECT, after authentication the name that it has proved."""
    return CLASSES["ClientInfo"](
        node=client.node,
        clientid=text(client.client_id),
        username=text(username or ""),
        password="" if password is None else password.decode("utf-8", "replace"),
        peerhost=client.peer_host,
        sockport=client.sock_port,
        protocol=protocol_of(client),
        mountpoint=text(client.mountpoint),
        is_superuser=client.is_superuser,
        anonymous=client.anonymous,
        cn=text(client.cn or ""),
        dn=text(client.dn or ""),
    )


def text(value: str) -> str:
    """Return the text without surrogates, which protobuf does not encode."""
    return value.encode("utf-8", "replace").decode("utf-8")
