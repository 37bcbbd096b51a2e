"""An MQTT client for bridges, with the broker's own codec: MQTT 3.1, 3.1.1 and 5.0 over TCP, TLS and WebSocket.

``client.py`` connects and reconnects, ``connection.py`` uses one network connection, ``session_state.py`` is the state
that outlives it, ``stream.py`` transports the bytes. The package does not know resources, rules and their parameters;
``resources/mqtt_bridge.py`` calls it."""
