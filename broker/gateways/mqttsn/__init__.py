"""MQTT-SN 1.2 over UDP (docs/gateways/mqtt-sn.md).

``codec`` has the messages as data and bytes, ``states`` the states of a conversation and their order, ``topics`` the
topic ids of a client, ``wills`` its Will, ``publications`` what it publishes, ``deliveries`` what it is sent, with
repetitions and the proof of its address. ``conversation`` connects these to the client and to the broker, and
``gateway`` has the settings and what the node loads. Only the node calls it, as it calls
the gateways of other packages (``broker/gateway.py``)."""
