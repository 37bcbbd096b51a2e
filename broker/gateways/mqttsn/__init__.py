"""MQTT-SN 1.2 over UDP (docs/gateways/mqtt-sn.md).

``codec`` has the messages as data and bytes, ``topics`` the topic ids of a client, ``conversation`` what a client and
the node say to each other, and ``gateway`` the settings and what the node loads. Only the node calls it, as it calls
the gateways of other packages (``broker/gateway.py``)."""
