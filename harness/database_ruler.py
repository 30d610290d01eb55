"""The tables of RULER-style tasks: protocols, the scanners that took part, and one answer per sample and scanner.

An answer is stored once per protocol, task, sample and scanner, whichever invocation (`measurement`) gave it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, ForeignKeyConstraint, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from leadline.database_schema import Base


class RulerProtocolRow(Base):
    __tablename__ = "ruler_protocol"

    id: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(unique=True)
    model: Mapped[str]
    weights_sha256: Mapped[str]
    dtype: Mapped[str]
    rope: Mapped[str]
    template_sha256: Mapped[str]
    length: Mapped[int]
    seed: Mapped[int]
    k: Mapped[int]
    sink: Mapped[int]
    local: Mapped[int]
    max_new_tokens: Mapped[int]
    prefill_chunk: Mapped[int]
    tasks_version: Mapped[int]
    haystack_sha256: Mapped[str]


class RulerScannerRow(Base):
    __tablename__ = "ruler_scanner"

    protocol_id: Mapped[int] = mapped_column(ForeignKey("ruler_protocol.id"), primary_key=True)
    sha256: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    label: Mapped[str]
    role: Mapped[str]
    config: Mapped[dict[str, Any]]
    calibration_sha256: Mapped[str | None]


class RulerAnswerRow(Base):
    __tablename__ = "ruler_answer"
    __table_args__ = (
        UniqueConstraint("protocol_id", "task", "sample", "scanner_sha256"),
        ForeignKeyConstraint(["protocol_id", "scanner_sha256"], ["ruler_scanner.protocol_id", "ruler_scanner.sha256"]),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    protocol_id: Mapped[int]
    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"), index=True)
    task: Mapped[str]
    sample: Mapped[int]
    scanner_sha256: Mapped[str]
    prompt_tokens: Mapped[int]
    prompt_sha256: Mapped[str]
    gold: Mapped[list[Any]]
    text: Mapped[str]
    tokens: Mapped[list[Any]]
    stopped: Mapped[bool]
    score: Mapped[float]
    bits_per_token: Mapped[float]
    union_rows: Mapped[float]
