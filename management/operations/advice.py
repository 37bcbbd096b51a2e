"""Advice: what helps against a reason of a refusal, a drop or a lost connection. What it means: ``reasons``."""

from typing import Final

ADVICE: Final = {
    "tcp_closed": "The client or the network failed: look at the client's own log, and at balancers between.",
    "keepalive_timeout": (
        "Give the client a longer Keep Alive, or raise keep_alive_multiplier where the network is slow."
    ),
    "takeovered": "Where it repeats, two devices share this identifier: give each its own.",
    "discarded": "Where it repeats, two devices share this identifier: give each its own.",
    "server_unavailable": "The setting names which one; see the alarms on the dashboard's page Trouble.",
    "use_another_server": "The setting says why: cluster.isolated, or an operator who evacuates the node.",
    "idle_timeout": "Something connects that speaks no MQTT, or a very slow client: raise idle_timeout.",
    "token_expired": "Have the client fetch a new token before.",
    "user_deleted": "Make the user again on the dashboard's page Access, or give the client another.",
    "slow_reader": (
        "The client or its network is too slow for what it has subscribed to: fewer subscriptions, or a "
        "longer slow_reader_timeout."
    ),
    "quota_exceeded": "Raise the setting named here, or have the client do less.",
    "bad_username_or_password": "Try the login on the dashboard's page Access: it says which source refuses it.",
    "not_authorized": "Ask the dashboard's page Topics who may: it says which rule decides. Then change that rule.",
    "session_of_another": "Give the client its own identifier, or kick the session that is there.",
    "banned": "Take the ban away on the dashboard's page Access.",
    "bad_authentication_method": "Use a name and a password, or give users scram.",
    "server_busy": "Raise access.hash_threads, or let clients come back more slowly.",
    "client_identifier_not_valid": "Change the identifier, or the setting.",
    "packet_too_large": "The detail has both sizes: raise the setting, or send less at once.",
    "receive_maximum_exceeded": "Raise receive_maximum, or mend the client.",
    "topic_alias_invalid": "Raise max_topic_alias, or mend the client.",
    "qos_not_supported": "Raise max_qos, or use a lower QoS.",
    "retain_not_supported": "Set retain_available.",
    "topic_name_invalid": "Change the topic, or raise max_topic_levels.",
    "topic_filter_invalid": "Change the filter, or raise max_topic_levels.",
    "malformed_packet": "The detail says how. Mend the client; a trace shows its packets.",
    "protocol_error": "The detail says how. Mend the client; a trace shows its packets.",
    "internal_error": "Its log has it with exception=: report it.",
    "packet_identifier_in_use": "Mend the client.",
    "shared_subscriptions_not_supported": "Set shared_subscription.",
    "wildcard_subscriptions_not_supported": "Set wildcard_subscription.",
    "queue_full": (
        "It is away for too long, or too slow. Raise max_queued_messages and max_queued_bytes, or share "
        "the work among members of a group."
    ),
    "too_large": "Raise it in the client, or publish less at once.",
    "qos0_msg": "Set queue_qos0, or publish and subscribe with QoS 1.",
    "full": "See the network between the nodes; cluster.link_credit bounds it.",
    "session_ended.expired": "Have the client ask for a longer one.",
    "row_too_large": "Raise max_payload in the configuration of the NATS servers.",
    "will_too_large": "Raise max_payload in the configuration of the NATS servers.",
    "memory": "Raise limits.memory, or bound queues by max_queued_bytes.",
}
"""By reason, or by event and reason where one word means two things."""


def advice_of(event: str, reason: str) -> str:
    """Empty where there is none."""
    return ADVICE.get(f"{event}.{reason}") or ADVICE.get(reason, "")
