"""The tables of a results database, as SQLAlchemy 2 typed classes.

A column has the name and the unit of the record field it holds (see `leadline.records`), so that a person with any
SQLite client can filter on what the reports print; lists and nested values are JSON. Natural keys are UNIQUE: a run is
its protocol, a session and a scanner are their hashes, a result is (run, session, step, scanner). `environment` holds
one row per invocation, and every result points to the invocation that made it. What is measured without a replay points
to its `measurement`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, ForeignKey, ForeignKeyConstraint, Text, TypeDecorator, UniqueConstraint
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA_VERSION = 2
# What each version brought, all of it by new tables, which `database_file` creates where a file lacks them:
# 1: the tables of replays. 2: `measurement`, and the tables of commands that measure without replaying.
# A table that marks or adds and that a reader can do without (`shared_copy`) needs no number.
# New tables stand in a module of their own on this module's `Base`, listed in `database_tables`. A released version
# whose tables change in any other way needs the next number, and a step that `database_file` runs on older files.


class AnyText(TypeDecorator[str]):
    """Text of any origin: lone surrogates, which UTF-8 cannot hold, are written as backslash escapes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


def storable(text: str) -> str:
    """`text` as the database gives it back."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class Base(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map: ClassVar = {
        str: AnyText(),
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
    }


class SchemaVersionRow(Base):
    __tablename__ = "schema_version"

    id: Mapped[int] = mapped_column(primary_key=True)
    application: Mapped[str]
    version: Mapped[int]
    written_by: Mapped[str]


class RunRow(Base):
    __tablename__ = "run"

    id: Mapped[int] = mapped_column(primary_key=True)
    protocol_sha256: Mapped[str] = mapped_column(unique=True)
    protocol: Mapped[dict[str, Any]]
    spec: Mapped[dict[str, Any]]
    status: Mapped[str]
    created: Mapped[str]
    updated: Mapped[str]


class Machine:
    """The columns of a `leadline.records.Environment`, for every table that says where something was measured."""

    leadline: Mapped[str]
    git_commit: Mapped[str | None]
    git_dirty: Mapped[bool | None]
    python: Mapped[str]
    packages: Mapped[dict[str, Any]]
    platform: Mapped[str]
    cpu: Mapped[str]
    cpu_threads: Mapped[int]
    memory_bytes: Mapped[int]
    gpu: Mapped[str | None]
    gpu_memory_bytes: Mapped[int | None]
    driver: Mapped[str | None]
    cuda: Mapped[str | None]
    pcie_generation: Mapped[int | None]
    pcie_width: Mapped[int | None]
    link_gb_per_second: Mapped[float | None]
    numa_node: Mapped[int | None]
    gpu_clock_mhz: Mapped[int | None]


class EnvironmentRow(Machine, Base):
    """One invocation of a replay: the command, when it ran, and the machine it ran on."""

    __tablename__ = "environment"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), index=True)
    command: Mapped[str]
    started: Mapped[str]
    ended: Mapped[str | None]


class MeasurementRow(Machine, Base):
    """One invocation of a command that measures without replaying sessions (`kind`): its settings and its machine."""

    __tablename__ = "measurement"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(index=True)
    spec: Mapped[dict[str, Any]]
    command: Mapped[str]
    started: Mapped[str]
    ended: Mapped[str | None]


class ModelRow(Base):
    __tablename__ = "model"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), primary_key=True)
    id: Mapped[str]
    weights_sha256: Mapped[str]
    architecture: Mapped[str]
    layers: Mapped[int]
    scanned_layers: Mapped[list[Any]]
    query_heads: Mapped[int]
    kv_heads: Mapped[int]
    head_dim: Mapped[int]
    dtype: Mapped[str]
    device: Mapped[str]
    rope: Mapped[str | None]
    template_sha256: Mapped[str]
    template_traits: Mapped[dict[str, Any]]


class SessionRow(Base):
    __tablename__ = "session"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), primary_key=True)
    sha256: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    id: Mapped[str]
    format: Mapped[str]
    path: Mapped[str]
    source: Mapped[str]
    view: Mapped[str]
    steps: Mapped[int]
    segments: Mapped[int]
    notes: Mapped[list[Any]]
    tools_rendered: Mapped[bool]
    dense_perplexity: Mapped[float | None]


class ExclusionRow(Base):
    __tablename__ = "exclusion"
    __table_args__ = (UniqueConstraint("run_id", "content_sha256"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    content_sha256: Mapped[str]
    path: Mapped[str]
    session_sha256: Mapped[str | None]
    step: Mapped[int | None]
    reason: Mapped[str]


class BranchPointRow(Base):
    __tablename__ = "branch_point"
    __table_args__ = (ForeignKeyConstraint(["run_id", "session_sha256"], ["session.run_id", "session.sha256"]),)

    run_id: Mapped[int] = mapped_column(primary_key=True)
    session_sha256: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    segment: Mapped[int]
    prompt_tokens: Mapped[int]
    prompt_sha256: Mapped[str]
    prefill_from: Mapped[int]
    recorded_tokens: Mapped[list[Any]]
    recorded_text: Mapped[str]
    prompt_tail: Mapped[str]


class ScannerRow(Base):
    __tablename__ = "scanner"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), primary_key=True)
    sha256: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    label: Mapped[str]
    name: Mapped[str]
    config: Mapped[dict[str, Any]]
    calibration_sha256: Mapped[str | None]
    prefill_chunk: Mapped[int | None]
    role: Mapped[str]
    fused: Mapped[bool]


class StepResultRow(Base):
    __tablename__ = "step_result"
    __table_args__ = (
        UniqueConstraint("run_id", "session_sha256", "step", "scanner_sha256"),
        ForeignKeyConstraint(
            ["run_id", "session_sha256", "step"],
            ["branch_point.run_id", "branch_point.session_sha256", "branch_point.step"],
        ),
        ForeignKeyConstraint(["run_id", "scanner_sha256"], ["scanner.run_id", "scanner.sha256"]),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int]
    session_sha256: Mapped[str]
    step: Mapped[int]
    scanner_sha256: Mapped[str]
    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    created: Mapped[str]
    tokens: Mapped[list[Any]]
    margins: Mapped[list[Any]]
    text: Mapped[str]
    stopped: Mapped[bool]
    agreement: Mapped[float]
    word_prefix_agreement: Mapped[float]
    word_positional_agreement: Mapped[float]
    token_agreement: Mapped[float]
    exact_match: Mapped[bool]
    first_divergence: Mapped[int | None]
    divergence_margin: Mapped[float | None]
    dense_agreement: Mapped[float]
    recorded_agreement: Mapped[float | None]
    action_name_agreement: Mapped[bool | None]
    action_agreement: Mapped[bool | None]
    recorded_action_name_agreement: Mapped[bool | None]
    recorded_action_agreement: Mapped[bool | None]
    empty: Mapped[bool]
    repeating: Mapped[bool]


class StepCostRow(Base):
    __tablename__ = "step_cost"

    step_result_id: Mapped[int] = mapped_column(ForeignKey("step_result.id"), primary_key=True)
    decode_steps: Mapped[int]
    context_tokens: Mapped[int]
    block_tokens: Mapped[int]
    bits_per_token: Mapped[float]
    code_bits: Mapped[float]
    active_channels: Mapped[float]
    scan_planned_bytes: Mapped[int]
    scan_realised_bytes: Mapped[int]
    scan_sector_bytes: Mapped[int]
    row_bytes: Mapped[int]
    union_rows: Mapped[float]
    tail_bytes: Mapped[int]
    index_bytes: Mapped[int]
    index_build_seconds: Mapped[float]
    layer_bits: Mapped[list[Any]]
    gpu_ms: Mapped[float | None]
    gpu_stage_ms: Mapped[dict[str, Any] | None]
    wall_ms: Mapped[float]
    cpu_seconds: Mapped[float]
    timer: Mapped[str]


class TeacherForcedRow(Base):
    __tablename__ = "teacher_forced"

    step_result_id: Mapped[int] = mapped_column(ForeignKey("step_result.id"), primary_key=True)
    text: Mapped[str] = mapped_column(primary_key=True)
    tokens: Mapped[int]
    kl_dense: Mapped[float]
    kl_exact: Mapped[float]
    top1_dense: Mapped[float]
    top1_exact: Mapped[float]
    nll: Mapped[float]
    extra_nats: Mapped[float]
    kl_dense_by_token: Mapped[list[Any]]
    kl_exact_by_token: Mapped[list[Any]]
