"""The rule engine: EMQX 4.x rule SQL, its functions, and the parts of rules and their actions.

Messages and their routing are in `broker`; the HTTP forms of rules and resources are in `management`, which calls this
package. The broker calls it through `Broker.on_rule_match` for messages, and through the hooks that the engine
registers for other events."""
