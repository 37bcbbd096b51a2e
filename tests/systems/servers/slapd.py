"""OpenLDAP's server."""

from __future__ import annotations

from typing import Final

from .process import ServerProcess, program

SUFFIX: Final = "dc=emqx,dc=io"
SCHEMA: Final = """
attributetype ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.1.3 NAME 'isEnabled' EQUALITY booleanMatch
    SYNTAX 1.3.6.1.4.1.1466.115.121.1.7 SINGLE-VALUE )
attributetype ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.4.1 NAME ( 'mqttPublishTopic' 'mpt' ) EQUALITY caseExactMatch
    SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )
attributetype ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.4.2 NAME ( 'mqttSubscriptionTopic' 'mst' ) EQUALITY caseExactMatch
    SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )
attributetype ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.4.3 NAME ( 'mqttPubSubTopic' 'mpst' ) EQUALITY caseExactMatch
    SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )
objectclass ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.4 NAME 'mqttUser' SUP top AUXILIARY
    MAY ( mqttPublishTopic $ mqttSubscriptionTopic $ mqttPubSubTopic ) )
objectclass ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.2 NAME 'mqttDevice' SUP top STRUCTURAL MUST ( uid ) MAY ( isEnabled ) )
objectclass ( 1.3.6.1.4.1.11.2.53.2.2.3.1.2.3.3 NAME 'mqttSecurity' SUP top AUXILIARY MAY ( userPassword ) )
"""
"""The classes and attributes that EMQX's schema has."""


class Slapd(ServerProcess):
    """The administrator is ``admin_dn`` with ``password``. ``settings``: further lines of its file, read at a start."""

    admin_dn: Final = f"cn=root,{SUFFIX}"

    def __init__(self) -> None:
        self._slapd = program("slapd")
        self._add, self._delete, self._modify = (program(f"ldap{word}") for word in ("add", "delete", "modify"))
        self.settings: list[str] = []
        self._scheme = "ldap"
        super().__init__()

    def tls(self, certificate: str, key: str, ldaps: bool = True) -> None:
        """From the next start on: TLS from the first byte on, or StartTLS."""
        self.settings = [
            f"TLSCertificateFile {self.give('server.pem', certificate)}",
            f"TLSCertificateKeyFile {self.give('server.key', key)}",
        ]
        self._scheme = "ldaps" if ldaps else "ldap"

    def without_tls(self) -> None:
        self.settings, self._scheme = [], "ldap"

    def prepare(self) -> None:
        (self.directory / "data").mkdir()
        self.own(self.directory / "data")
        (self.directory / "emqx.schema").write_text(SCHEMA)

    def command(self) -> list[str]:
        lines = [
            *(f"include /etc/ldap/schema/{name}.schema" for name in ("core", "cosine", "inetorgperson", "nis")),
            f"include {self.directory}/emqx.schema",
            "modulepath /usr/lib/ldap",
            "moduleload back_mdb",
            *self.settings,
            "database mdb",
            f'suffix "{SUFFIX}"',
            f'rootdn "{self.admin_dn}"',
            f"rootpw {self.password}",
            f"directory {self.directory}/data",
            "dbnosync",
            "access to attrs=userPassword by anonymous auth by * none",
            "access to * by * read",
        ]
        file = self.directory / "slapd.conf"
        file.write_text("\n".join(lines) + "\n")
        self.own(file, 0o600)
        return [self._slapd, "-d", "0", "-f", str(file), "-h", f"{self._scheme}://127.0.0.1:{self.port}"]

    def ready(self) -> bool:
        return True

    def populate(self) -> None:
        self.change("add", ENTRIES)

    def change(self, what: str, ldif: str) -> None:
        """``add`` entries, or ``modify`` some."""
        self.run(
            self._add if what == "add" else self._modify, "-x", "-H", f"ldap://127.0.0.1:{self.port}",
            "-D", self.admin_dn, "-w", self.password, text=ldif,
        )  # fmt: skip

    def clear(self) -> None:
        """Delete all entries but those that it starts with."""
        for base in (f"ou=device,{SUFFIX}", f"ou=groups,{SUFFIX}"):
            self.run(
                self._delete, "-x", "-r", "-H", f"ldap://127.0.0.1:{self.port}", "-D", self.admin_dn, "-w",
                self.password, base,
            )  # fmt: skip
        self.change("add", ENTRIES.partition("\n\n")[2])


ENTRIES: Final = f"""dn: {SUFFIX}
objectClass: dcObject
objectClass: organization
dc: emqx
o: emqx

dn: ou=device,{SUFFIX}
objectClass: organizationalUnit
ou: device

dn: ou=groups,{SUFFIX}
objectClass: organizationalUnit
ou: groups
"""


def user(name: str, password: str, *lines: str, base: str = f"ou=device,{SUFFIX}") -> str:
    """An entry as LDIF. ``lines``: further attributes."""
    classes = "".join(f"objectClass: {name}\n" for name in ("mqttUser", "mqttDevice", "mqttSecurity"))
    stored = f"userPassword: {password}\n" if password else ""
    return f"dn: uid={name},{base}\n{classes}uid: {name}\n{stored}" + "".join(f"{each}\n" for each in lines) + "\n"
