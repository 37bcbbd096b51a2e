"""Apache Kafka, and all systems with its protocol.

The resource type ``bridge_kafka`` and the action ``data_to_kafka``."""
