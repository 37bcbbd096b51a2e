"""OneByOne: how writers of tests take a run of deliveries."""

from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.mqtt.run import Run


class OneByOne:
    """For a writer that looks at each PUBLISH: a ``ClientWriter``, and with ``send_pubrel`` a ``PacketWriter``."""

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        raise NotImplementedError

    def send_publish0(self, message: Message) -> None:
        raise NotImplementedError

    def send_run0(self, run: Run) -> None:
        for message in run.messages:
            self.send_publish0(message)

    def send_retained0(self, messages: list[Message], identifiers: tuple[int, ...]) -> int:
        for message in messages:
            self.send_publish(Delivery(message, 0, True, identifiers), 0, False)
        return len(messages)

    def takes_packets(self, version: int) -> bool:
        return False

    def send_packets0(self, packets: bytes, count: int) -> None:
        raise AssertionError("it does not take them")

    def flush_now(self) -> None:
        """What is sent is there at once."""

    def send_run(self, deliveries: list[Delivery], packet_ids: list[int]) -> list[int]:
        together = zip(deliveries, packet_ids, strict=True)
        return [packet_id for delivery, packet_id in together if not self.send_publish(delivery, packet_id, False)]
