"""What survives: batches of records, numbered, checked and flushed, in one SQLite file that one writer thread tends.

What a record says is not known here, nor which acknowledgement waits for it; the ``Journal`` only tells up to where
everything is on disk. Whoever keeps state that must outlive the process calls in, on the loop's thread.
"""
