"""The source for clients with a JSON Web Token, and for the rules in it: ``[access.jwt]``.

It answers immediately; keys from a URL are fetched in the background. ``access.registry`` lists it. PyJWT and
cryptography are imported only if the table exists."""
