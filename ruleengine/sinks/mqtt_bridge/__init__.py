"""Bridges: other MQTT brokers to which rows are sent and from which messages are received.

The resource type ``bridge_mqtt`` and the action ``data_to_mqtt_broker``."""
