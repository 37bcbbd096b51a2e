"""The source of clients that show a JSON Web Token, and of the rules in it: ``[access.jwt]``.

It answers at once; keys of a URL are fetched in the background. ``access.registry`` lists it. PyJWT and cryptography
are imported only where the table is there.
"""
