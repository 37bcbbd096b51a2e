"""The source that asks a service over HTTP who a client is and what it may do: ``[access.http]``.

Whoever asks has to wait for it. ``access.registry`` lists it. aiohttp is imported only where the table is there.
"""
