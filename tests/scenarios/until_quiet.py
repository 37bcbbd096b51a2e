"""Reading all that a peer was sent so far."""

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Pingreq, Pingresp
from tests.support.peer import Peer
from tests.support.wire import Publish


async def until_quiet(peer: Peer, acknowledge: bool = True) -> list[Publish]:
    """Every PUBLISH sent to a peer until nothing more comes; acknowledged, which may bring more, unless told not."""
    found: list[Publish] = []
    while True:
        quiet = True
        await peer.settle()
        await peer.send(Pingreq())
        while not isinstance(packet := await peer.receive(), Pingresp):
            quiet = False
            if isinstance(packet, Publish):
                found.append(packet)
                if acknowledge and packet.qos == 1:
                    await peer.puback(packet.packet_id)
                elif acknowledge and packet.qos == 2:
                    await peer.pubrec(packet.packet_id)
            else:
                assert isinstance(packet, Ack) and packet.type == c.PUBREL, f"{peer}: unexpected {packet!r}"
                await peer.pubcomp(packet.packet_id)
        if quiet or not acknowledge:
            return found


async def payloads(peer: Peer) -> list[bytes]:
    """What they carry."""
    return [each.payload for each in await until_quiet(peer)]
