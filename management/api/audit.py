"""/audit: who changed what, when, from where and through which door."""

from ..http.routes import Call, Endpoints
from ..operations.audit import AuditQuery, AuditRecord
from ..operations.node_listing import Page

routes = Endpoints("Audit")


@routes.get(
    "/audit",
    "Changes by operators and programs",
    query=AuditQuery,
    reply=list[AuditRecord],
)
async def list_audit(call: Call) -> Page[AuditRecord]:
    return await call.operations.audit.listing(call.query, call.operations.settings.max_row_limit)
