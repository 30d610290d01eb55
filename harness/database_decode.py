"""The table of timed decode steps: one row per scanner, context and setting of a measurement.

A column has the name and the unit of a field of `leadline.bench.records.DecodeTime`; what its parts `moved` and `time`
hold stands beside the rest.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from leadline.database_schema import Base


class DecodeTimeRow(Base):
    __tablename__ = "decode_time"
    __table_args__ = (
        UniqueConstraint(
            "measurement_id", "shape", "context", "batch", "placement", "transfer", "scanner_sha256", "k", "seed"
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    measurement_id: Mapped[int] = mapped_column(ForeignKey("measurement.id"), index=True)
    shape: Mapped[str]
    context: Mapped[int]
    batch: Mapped[int]
    placement: Mapped[str]
    transfer: Mapped[str]
    k: Mapped[int]
    seed: Mapped[int]
    scanner_sha256: Mapped[str]
    label: Mapped[str]
    name: Mapped[str]
    config: Mapped[dict[str, Any]]
    calibration_sha256: Mapped[str | None]
    layers: Mapped[int]
    block_tokens: Mapped[int]
    capacity: Mapped[int]
    weight_bytes: Mapped[int]
    index_bytes: Mapped[int]
    synthetic: Mapped[bool]
    distinct_rows_layers: Mapped[int]
    distinct_index_layers: Mapped[int]
    scan_planned_bytes: Mapped[float]
    scan_counted_bytes: Mapped[float]
    row_bytes: Mapped[float]
    union_rows: Mapped[float]
    bits_per_token: Mapped[float]
    gpu_ms: Mapped[float]
    gpu_iqr_ms: Mapped[float]
    stage_ms: Mapped[dict[str, Any] | None]
    event_ms: Mapped[float]
    event_iqr_ms: Mapped[float]
    wall_ms: Mapped[float]
    wall_iqr_ms: Mapped[float]
    steps: Mapped[int]
    timer: Mapped[str]
    kernels: Mapped[int | None]
    uneven: Mapped[bool | None]
    streams: Mapped[int | None]
    link_before_gb_per_second: Mapped[float]
    link_after_gb_per_second: Mapped[float]
    scan_gb_per_second: Mapped[float | None]
    scan_link_share: Mapped[float | None]
    row_gb_per_second: Mapped[float | None]
