"""The MQTT standards as data and bytes: numbers, Control Packets, topics, properties, decoder and encoder.

This package does not know sockets, sessions, clocks or settings, and uses only the standard library. The channel feeds
bytes to a ``Decoder`` and writes what ``encoder`` returns; sessions and routing use ``message`` and ``topics``."""
