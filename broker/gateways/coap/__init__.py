"""CoAP over UDP (docs/gateways/coap.md).

``codec`` converts the messages between data and bytes. ``exchange`` is the message layer of one address, with
``sending`` (what is repeated until it is acknowledged), ``calls`` (requests of the node), ``blockwise`` and ``bodies``
(messages larger than a datagram). ``observe`` has the observations of a client. None of these knows MQTT: LwM2M can use
them. ``conversation`` translates between the requests of a CoAP client and MQTT packets, ``pubsub`` those below
``/ps``, and ``gateway`` has what the node loads."""
