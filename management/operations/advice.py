"""Advice: what to do about the reason of a refusal, a drop or a lost connection. For the meaning of reasons, and for
advice that depends on the setting, see ``reasons``."""

from typing import Final

ADVICE: Final = {
    "tcp_closed": "The client or the network failed. Check the client's own log and any load balancers in between.",
    "keepalive_timeout": (
        "Give the client a longer Keep Alive, or increase keep_alive_multiplier if the network is slow."
    ),
    "takeovered": "Give each device its own client ID.",
    "discarded": "Give each device its own client ID.",
    "server_unavailable": "The setting shows what the node could not reach. See also the alarms on the dashboard.",
    "use_another_server": "The setting shows the cause: cluster.isolated, or an operator who is evacuating the node.",
    "idle_timeout": "The client does not speak MQTT, or it is very slow: for a slow client, increase idle_timeout.",
    "token_expired": "Have the client fetch a new token before the old one expires.",
    "user_deleted": "Create the user again, or give the client another user.",
    "slow_reader": (
        "The client or its network is too slow for its subscriptions: subscribe to less, or increase "
        "slow_reader_timeout."
    ),
    "quota_exceeded": "Increase the setting shown here, or reduce what the client does.",
    "bad_username_or_password": (
        "Test the login on the dashboard's page Access: the result shows which source refuses it."
    ),
    "not_authorized": (
        "Check the topic's access on the dashboard's page Topics: the result shows which rule decides. "
        "Then change that rule."
    ),
    "client_refused.not_authorized": (
        "Test the login on the dashboard's page Access: the result shows which source refuses it."
    ),
    "session_of_another": "Give the client its own client ID, or kick the existing session.",
    "banned": "Lift the ban on the dashboard's page Access.",
    "bad_authentication_method": "Log in with a username and password, or set scram for the users.",
    "server_busy": "Increase access.hash_threads, or let clients reconnect more slowly.",
    "client_identifier_not_valid": "Change the client ID or the setting.",
    "packet_too_large": "The detail shows both sizes: increase the setting, or send smaller packets.",
    "receive_maximum_exceeded": "Increase receive_maximum, or fix the client.",
    "topic_alias_invalid": "Increase max_topic_alias, or fix the client.",
    "qos_not_supported": "Increase max_qos, or use a lower QoS.",
    "retain_not_supported": "Set retain_available = true, or publish without retain.",
    "topic_name_invalid": "Change the topic, or increase max_topic_levels.",
    "topic_filter_invalid": "Change the topic filter, or increase max_topic_levels.",
    "malformed_packet": "The detail shows how. Fix the client; a trace shows its packets.",
    "protocol_error": "The detail shows how. Fix the client; a trace shows its packets.",
    "internal_error": "The node's log shows it with exception=. Please report it.",
    "packet_identifier_in_use": "Fix the client.",
    "shared_subscriptions_not_supported": "Set shared_subscription = true, or subscribe without $share.",
    "wildcard_subscriptions_not_supported": "Set wildcard_subscription = true, or subscribe without wildcards.",
    "queue_full": (
        "The client is offline for too long, or too slow. Increase max_queued_messages and max_queued_bytes, or "
        "share the work in a shared subscription."
    ),
    "too_large": "Increase Maximum Packet Size in the client, or publish smaller messages.",
    "qos0_msg": "Set queue_qos0 = true, or publish and subscribe with QoS 1.",
    "full": "Check the network between the nodes. The limit is cluster.link_credit.",
    "session_ended.expired": "Have the client request a longer Session Expiry Interval.",
    "row_too_large": "Increase max_payload in the configuration of the NATS servers.",
    "will_too_large": "Increase max_payload in the configuration of the NATS servers.",
    "memory": "Increase limits.memory, or limit queues with max_queued_bytes.",
}
"""By reason, or by event and reason if the same word has two meanings."""
