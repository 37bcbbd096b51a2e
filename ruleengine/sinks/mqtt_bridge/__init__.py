"""Bridges: other MQTT brokers that rows are sent to, and messages are fetched from.

The resource type ``bridge_mqtt`` and the action ``data_to_mqtt_broker``.
"""
