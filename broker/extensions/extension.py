"""The common interface of optional parts."""

from abc import ABC, abstractmethod
from typing import ClassVar


class Extension(ABC):
    """An optional part that uses hooks only while it is loaded. ``name`` is that of EMQX's module, if it exists."""

    name: ClassVar[str]
    description: ClassVar[str]

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether the extension is loaded."""

    @abstractmethod
    def load(self) -> None:
        """Load the extension. No effect if it is already loaded."""

    @abstractmethod
    def unload(self) -> None:
        """Unload the extension. No effect if it is not loaded."""
