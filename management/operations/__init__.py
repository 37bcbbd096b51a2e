"""Operations of an operator, in plain Python on the running broker: queries and changes.

They contain no HTTP and no text for people: ``http`` and ``ctl`` call these operations and format the results. An
operation that is not possible raises ``refusal.Refusal`` with one of the specification's codes."""
