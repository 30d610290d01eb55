"""The mark of a copy that `leadline share` made: what is missing in it was left out, and no run goes on in it."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from leadline.database_schema import Base


class SharedCopyRow(Base):
    """One row in a copy, none in what a run wrote. `by_token`: the divergences of single tokens are in it."""

    __tablename__ = "shared_copy"

    id: Mapped[int] = mapped_column(primary_key=True)
    created: Mapped[str]
    leadline: Mapped[str]
    by_token: Mapped[bool]
