"""The rule engine: EMQX 4.x rule SQL, its functions, and what rules and their actions are made of.

What a message is and how it is routed stays in `broker`; the HTTP shapes of rules and resources stay in `management`.
`management` calls in, and the broker only through the hooks that the engine registers with it.
"""
