"""The source that is the configuration file: ``[[access.users]]`` and ``[[access.rules]]``.

It answers from memory, and each reload makes another one. ``access.registry`` lists it.
"""
