"""The parts that all endpoints share: routes, credentials, typed bodies and queries, the envelope, errors, streaming.

The endpoints themselves are in ``api``, which passes its routes to this package. Nothing here reads the broker: the
package only sends the results of ``operations``."""
