"""The declaration of the configuration file as a source of access."""

from typing import Final

from ..declaration import AccessSource
from ..emqx_plugin import EmqxPlugin

SOURCE: Final = AccessSource(
    name="configuration",
    create="taipan.broker.access.configuration.source:ConfigurationSource",
    place=1,
    emqx=EmqxPlugin(orders=("internal", "file")),
)
