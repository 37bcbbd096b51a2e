"""The rule engine: EMQX 4.x rule SQL, its functions, and what rules and their actions are made of.

What a message is and how it is routed stays in `broker`; the HTTP shapes of rules and resources stay in `management`.
`management` calls in. The broker does so with `Broker.on_rule_match` for messages, and with the hooks that the engine
registers with it for other events.
"""
