"""LwM2M 1.0 devices as clients: a device registers over CoAP, receives commands of MQTT clients, and publishes answers.

``gateway.py`` is what the node loads. Pure parts, from the bytes up: ``paths``, ``values``, ``tlv``, ``content``,
``objects``, ``links``, ``registration``, ``commands``, ``answers``. ``conversation.py`` connects them to the device and
to the broker."""
