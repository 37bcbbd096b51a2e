"""The MQTT standards as data and bytes: numbers, Control Packets, topics, properties, decoder and encoder.

Nothing here knows a socket, a session, a clock or a setting; everything is standard library only. The channel feeds
bytes to a ``Decoder`` and writes what ``encoder`` returns; sessions and routing use ``message`` and ``topics``.
"""
