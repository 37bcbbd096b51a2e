"""Where resources may connect to, and how: addresses that are refused, and the TLS parameters they share.

It knows no protocol and no resource type.
"""
