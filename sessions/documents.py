"""Which reader takes a JSON document: the readers, in the order in which they are asked, and their one protocol.

A document is one decoded JSON value: a whole file, a line of JSON lines, or a row of a data set. The first reader whose
`sniff` says yes reads it; those that look for a format's own marks come before those that take any list of messages.
"""

from __future__ import annotations

from typing import Protocol

from .atif_reader import AtifDocument
from .chat_records import BareMessages, ChatRecord, RoleRecord
from .eval_records import EvalRecord
from .event_lists import V0Trajectory, V1Export
from .formats import Draft
from .schema import View
from .swe_agents import MiniSweAgent, SweAgent


class DocumentReader(Protocol):
    """A reader of one decoded JSON document."""

    format: str

    def sniff(self, value: object) -> bool:
        """Whether the document is of this format, by its content."""

    def read(self, value: object, view: View) -> list[Draft]:
        """The sessions in a document that `sniff` accepted."""


DOCUMENT_READERS: tuple[DocumentReader, ...] = (
    AtifDocument(),
    MiniSweAgent(),
    SweAgent(),
    EvalRecord(),
    V1Export(),
    V0Trajectory(),
    RoleRecord("chat-nebius-sweagent", "trajectory", "role", ("text", "system_prompt"), marks="ai"),
    RoleRecord("chat-conversations", "conversations", "from", ("value",)),
    ChatRecord(),
    BareMessages(),
)
