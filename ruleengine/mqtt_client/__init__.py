"""An MQTT client for bridges, by the broker's own codec: MQTT 3.1, 3.1.1 and 5.0 over TCP, TLS and WebSocket.

``client.py`` connects and connects again, ``connection.py`` speaks over one network connection, ``session_state.py`` is
what outlives it, ``stream.py`` carries the bytes. Nothing of resources, rules and their parameters is known here;
``resources/mqtt_bridge.py`` calls in.
"""
