"""Login to the dashboard by OpenID Connect: ``[dashboard.openid]``.

``operations`` imports it only if the table exists, because it needs PyJWT and cryptography."""
