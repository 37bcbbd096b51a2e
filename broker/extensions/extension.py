"""What every optional extra has in common."""

from abc import ABC, abstractmethod
from typing import ClassVar


class Extension(ABC):
    """An extra that uses hooks only while it is loaded. ``name`` is EMQX's where EMQX has the module."""

    name: ClassVar[str]
    description: ClassVar[str]

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether it is loaded."""

    @abstractmethod
    def load(self) -> None:
        """Begin to work. Free of effect when it is loaded."""

    @abstractmethod
    def unload(self) -> None:
        """Work no more. Free of effect when it is not loaded."""
