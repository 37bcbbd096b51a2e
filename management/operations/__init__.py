"""What an operator may ask or order, in plain Python over the live broker.

No HTTP and no text for people: ``http`` and ``ctl`` call these operations and only dress the results.
What cannot be done raises ``refusal.Refusal`` with one of the specification's codes.
"""
