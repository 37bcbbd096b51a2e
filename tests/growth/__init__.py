"""What the broker does as the work grows: counted operations, never seconds, so that a busy machine proves nothing.

Here is growth in the number of things and what one turn of the loop may hold; how fast any of it is, is measured
under ``tools/bench``. Pytest calls in; ``TAIPAN_GROWTH=1000000`` makes their numbers as large as that.
"""
