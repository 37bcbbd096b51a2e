/** What the reasons of refusals, drops and disconnections mean, and what helps. The rest is in docs/log.md. */

interface Reason {
  what: string;
  advice?: string;
}

export const reasons: Record<string, Reason> = {
  normal: { what: "The client said DISCONNECT." },
  disconnect_with_will_message: { what: "The client said DISCONNECT and asked for its Will to be published." },
  tcp_closed: {
    what: "The connection ended without DISCONNECT.",
    advice: "The client or the network failed: look at the client's own log, and at balancers between.",
  },
  keepalive_timeout: {
    what: "The client was silent for longer than its Keep Alive times the multiplier.",
    advice: "Give the client a longer Keep Alive, or raise keep_alive_multiplier where the network is slow.",
  },
  takeovered: {
    what: "A client with the same identifier connected and resumed the session.",
    advice: "Where it repeats, two devices share this identifier: give each its own.",
  },
  discarded: {
    what: "A client with the same identifier connected and asked for a new session.",
    advice: "Where it repeats, two devices share this identifier: give each its own.",
  },
  kicked: { what: "An operator ended the connection and the session." },
  server_shutting_down: { what: "The node stopped." },
  server_unavailable: {
    what: "The node, or a service that it has to ask, could not answer.",
    advice: "The setting names which one; see the alarms on the page Trouble.",
  },
  use_another_server: { what: "The node is without the others of its cluster.", advice: "cluster.isolated says what is done then." },
  idle_timeout: {
    what: "No complete CONNECT, or no AUTH, came in time.",
    advice: "Something connects that speaks no MQTT, or a very slow client: raise idle_timeout.",
  },
  token_expired: { what: "The token that it authenticated with has expired.", advice: "Have the client fetch a new token before." },
  user_deleted: { what: "Its user was deleted.", advice: "Make the user again on the page Access, or give the client another." },
  slow_reader: {
    what: "Its socket was full, and it read next to nothing.",
    advice: "The client or its network is too slow for what it has subscribed to: fewer subscriptions, or a longer slow_reader_timeout.",
  },
  quota_exceeded: {
    what: "It goes beyond a bound.",
    advice: "Raise the setting named here, or have the client do less.",
  },
  bad_username_or_password: {
    what: "Unknown user, wrong password, or a name without one.",
    advice: "Try the login on the page Access: it says which source refuses it.",
  },
  not_authorized: {
    what: "Access rules refuse it.",
    advice: "Ask the page Topics who may: it says which rule decides. Then change that rule.",
  },
  session_of_another: {
    what: "The session of this identifier belongs to another user.",
    advice: "Give the client its own identifier, or kick the session that is there.",
  },
  banned: { what: "A ban is in force.", advice: "Take the ban away on the page Access." },
  bad_authentication_method: { what: "The method is not SCRAM-SHA-256, or no user has it.", advice: "Use a name and a password, or give users scram." },
  server_busy: { what: "Too many passwords wait to be verified.", advice: "Raise access.hash_threads, or let clients come back more slowly." },
  client_identifier_not_valid: { what: "No identifier, a too long one, or one that the mount point cannot take.", advice: "Change the identifier, or the setting." },
  unsupported_protocol_version: { what: "The client speaks neither MQTT 3.1, 3.1.1 nor 5.0." },
  packet_too_large: { what: "A packet was larger than is allowed.", advice: "The detail has both sizes: raise the setting, or send less at once." },
  receive_maximum_exceeded: { what: "More QoS 1 and 2 messages at once than the client was told.", advice: "Raise receive_maximum, or mend the client." },
  topic_alias_invalid: { what: "A Topic Alias above the bound.", advice: "Raise max_topic_alias, or mend the client." },
  qos_not_supported: { what: "A QoS that the node ruled out.", advice: "Raise max_qos, or use a lower QoS." },
  retain_not_supported: { what: "A retained message, which the node ruled out.", advice: "Set retain_available." },
  topic_name_invalid: { what: "The topic is not a Topic Name, or has too many levels.", advice: "Change the topic, or raise max_topic_levels." },
  topic_filter_invalid: { what: "The filter is not a Topic Filter, or has too many levels.", advice: "Change the filter, or raise max_topic_levels." },
  malformed_packet: { what: "A packet violates the standard.", advice: "The detail says how. Mend the client; a trace shows its packets." },
  protocol_error: { what: "The client violates the standard.", advice: "The detail says how. Mend the client; a trace shows its packets." },
  internal_error: { what: "A bug of the node.", advice: "Its log has it with exception=: report it." },
  packet_identifier_in_use: { what: "A Packet Identifier was used again too early.", advice: "Mend the client." },
  shared_subscriptions_not_supported: { what: "Shared subscriptions are ruled out.", advice: "Set shared_subscription." },
  wildcard_subscriptions_not_supported: { what: "Filters with wildcards are ruled out.", advice: "Set wildcard_subscription." },
  queue_full: {
    what: "Its queue was full: the oldest message in it went.",
    advice: "It is away for too long, or too slow. Raise max_queued_messages and max_queued_bytes, or share the work among members of a group.",
  },
  too_large: { what: "The message is larger than the client takes (Maximum Packet Size).", advice: "Raise it in the client, or publish less at once." },
  expired: { what: "The message was older than its Message Expiry Interval when the client could take it." },
  qos0_msg: {
    what: "A message of QoS 0 while the client was away or read too slowly.",
    advice: "Set queue_qos0, or publish and subscribe with QoS 1.",
  },
  full: { what: "Too much is under way to another node of the cluster.", advice: "See the network between the nodes; cluster.link_credit bounds it." },
  no_local: { what: "It published the message itself, and its subscription wants none of its own." },
  new_session: { what: "It connected, and a new session began." },
  session_present: { what: "It connected, and took up the session that was there." },
  "session_ended.expired": {
    what: "It was away for longer than its Session Expiry Interval: subscriptions and queue are gone.",
    advice: "Have the client ask for a longer one.",
  },
  memory: { what: "The node is short of memory.", advice: "Raise limits.memory, or bound queues by max_queued_bytes." },
  revoked: { what: "Access rules have changed and forbid this subscription." },
};

export function reasonOf(event: string, reason: string): Reason | undefined {
  return reasons[`${event}.${reason}`] ?? reasons[reason];
}
