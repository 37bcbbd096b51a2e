"""How a session is subscribed for the operator: by proxy subscription, or by the row that a rule has found for its
client. As in EMQX, access rules do not apply."""

from ..mqtt import reason_codes
from ..session.session import Session
from .broker import Broker
from .outcome import Outcome
from .subscription_plan import FilterPlan, no_room


def subscribe_for_operator(broker: Broker, session: Session, plan: FilterPlan) -> Outcome | None:
    """Subscribe a session; return why it was not subscribed. In a cluster, an exclusive filter must be claimed before.

    A subscription that already exists with these options stays, and its retained messages follow again: as for a client
    that subscribes whenever it connects."""
    if plan.refusal is not None:
        return plan.refusal
    if plan.exclusive:
        taken = broker.exclusive.refusal(session, plan.mounted)
        if taken is not None:
            return taken
    there = session.subscriptions.get(plan.filter)
    if there is None:
        setting = no_room(session, (plan.filter,), broker.short_of_memory)
        if setting:
            return Outcome(reason_codes.QUOTA_EXCEEDED, setting)
    subscription = plan.subscription(session, session.client, by_operator=True)
    if there is None or not there.by_operator or there.info() != subscription.info():
        broker.subscribe(session, subscription)
    elif there.group is None and there.retain_handling == 0:
        broker.replay_retained(session, there)
    return None
