"""Apache Kafka, and all systems with its protocol.

The resource type ``bridge_kafka`` with the action ``data_to_kafka``, and the resource type ``kafka_consumer``."""
