"""/configuration: the effective settings, and the file in which those that a reload applies can be changed."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ..http.envelope import Extra
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.configuration import CertificateRecord, ConfigurationQuery, SettingRecord
from ..operations.configuration_file import MAX_CHANGES, ConfigurationChange, ConfigurationFileRecord, SettingChange
from ..operations.listing import Listing

routes = Endpoints("Configuration")


@routes.get(
    "/configuration", "Effective settings and their sources", query=ConfigurationQuery, reply=list[SettingRecord]
)
async def list_configuration(call: Call) -> Listing[SettingRecord]:
    return await call.operations.configuration.listing(call.query, call.operations.settings.max_row_limit)


class SettingsUpdate(msgspec.Struct):
    """``version``: that of the file whose difference the caller has seen; required unless ``dry_run``."""

    changes: Annotated[list[SettingChange], Meta(min_length=1, max_length=MAX_CHANGES)]
    version: str = ""
    dry_run: bool = False


@routes.get("/nodes/{node}/configuration/file", "The configuration file of a node", reply=ConfigurationFileRecord)
async def lookup_configuration_file(call: Call) -> ConfigurationFileRecord:
    return await call.operations.configuration_file.record(call.path["node"])


@routes.put(
    "/nodes/{node}/configuration", "Change settings in the file of a node", body=SettingsUpdate,
    reply=ConfigurationChange,
)  # fmt: skip
async def change_settings(call: Call) -> ConfigurationChange:
    body: SettingsUpdate = call.body
    done = await call.operations.configuration_file.change(call.path["node"], body.changes, body.version, body.dry_run)
    # Not the body: its members are named key and value, which would not mask a secret.
    call.audited = [
        [{"setting": each.key, "value": getattr(each, which)} for each in done.changed] for which in ("before", "after")
    ]
    return done


class NodeCertificates(msgspec.Struct):
    """The certificates that one node serves."""

    node: str
    certificates: list[CertificateRecord]


@routes.get("/certificates", "Served certificates and their expiry", reply=OfNodes(list[NodeCertificates]))
async def list_certificates(call: Call) -> list[NodeCertificates] | Extra:
    return await call.on_all(NodeCertificates, call.operations.configuration.certificates)
