"""What all endpoints share: routes, credentials, bodies and queries by type, the envelope, errors, streaming.

No endpoint lives here; those are in ``api``, which calls in with its routes.
Nothing here reads the broker: it only carries what ``operations`` answer.
"""
