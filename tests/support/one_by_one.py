"""OneByOne: how writers of tests take a run of deliveries."""

from taipan.broker.mqtt.message import Delivery


class OneByOne:
    """For a writer that looks at each PUBLISH."""

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        raise NotImplementedError

    def flush_now(self) -> None:
        """What is sent is there at once."""

    def send_run(self, deliveries: list[Delivery], packet_ids: list[int]) -> list[int]:
        together = zip(deliveries, packet_ids, strict=True)
        return [packet_id for delivery, packet_id in together if not self.send_publish(delivery, packet_id, False)]
