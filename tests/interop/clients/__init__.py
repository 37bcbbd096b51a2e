"""One adapter a client library, all with the face of ``client.InteropClient``.

What differs between the libraries stops here; the behaviours are in ``tests/interop/test_clients.py``.
Nothing here asserts anything.
"""
