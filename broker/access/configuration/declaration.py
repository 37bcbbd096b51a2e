"""The declaration of the configuration file as a source of access."""

from typing import Final

from ..declaration import AccessSource

SOURCE: Final = AccessSource(
    name="configuration", create="taipan.broker.access.configuration.source:ConfigurationSource", place=1
)
