"""The source for the configuration file: ``[[access.users]]`` and ``[[access.rules]]``.

It answers from memory, and each reload creates a new one. ``access.registry`` lists it."""
