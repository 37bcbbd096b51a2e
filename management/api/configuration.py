"""/configuration: the effective settings."""

import msgspec

from ..http.envelope import Extra
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.configuration import CertificateRecord, ConfigurationQuery, SettingRecord
from ..operations.listing import Listing

routes = Endpoints("Configuration")


@routes.get(
    "/configuration", "Effective settings and their sources", query=ConfigurationQuery, reply=list[SettingRecord]
)
async def list_configuration(call: Call) -> Listing[SettingRecord]:
    return await call.operations.configuration.listing(call.query, call.operations.settings.max_row_limit)


class NodeCertificates(msgspec.Struct):
    """The certificates that one node serves."""

    node: str
    certificates: list[CertificateRecord]


@routes.get("/certificates", "Served certificates and their expiry", reply=OfNodes(list[NodeCertificates]))
async def list_certificates(call: Call) -> list[NodeCertificates] | Extra:
    return await call.on_all(NodeCertificates, call.operations.configuration.certificates)
