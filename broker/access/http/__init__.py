"""The source that asks a service over HTTP who a client is and what it may do: ``[access.http]``.

The caller has to wait for its answer. ``access.registry`` lists it. aiohttp is imported only if the table exists.
"""
