"""Answers in a results database: what is stored is never asked again, one transaction an answer."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from leadline.database import Results
from leadline.database_checks import agree, record_of, refuse_not_finite
from leadline.database_ruler import RulerAnswerRow, RulerProtocolRow, RulerScannerRow
from leadline.ruler.records import RulerAnswer, RulerProtocol, RulerScanner

KIND = "ruler"


class RulerStore:
    """The answers of one protocol, being written by one invocation."""

    def __init__(self, results: Results, measurement: int, protocol: RulerProtocol) -> None:
        self._results, self._measurement = results, measurement
        with results.transaction() as db:
            row = db.scalar(select(RulerProtocolRow).where(RulerProtocolRow.sha256 == protocol.sha256))
            if row is None:
                row = RulerProtocolRow(sha256=protocol.sha256, **protocol.model_dump())
                db.add(row)
                db.flush()
            self.protocol = row.id

    def add_scanner(self, scanner: RulerScanner) -> None:
        """Store a scanner; one that is there keeps its place."""
        with self._results.transaction() as db:
            row = db.get(RulerScannerRow, (self.protocol, scanner.sha256))
            if row is None:
                db.add(RulerScannerRow(protocol_id=self.protocol, **scanner.model_dump(mode="json")))
            else:
                lenient = {"position", "label"}
                agree(self._results.path, f"scanner {scanner.label}", scanner, row, RulerScanner, lenient)

    def done(self, task: str, sample: int) -> set[str]:
        """The sha256 of every scanner that has answered."""
        query = select(RulerAnswerRow.scanner_sha256).filter_by(protocol_id=self.protocol, task=task, sample=sample)
        with self._results.transaction() as db:
            return set(db.scalars(query))

    def save(self, answer: RulerAnswer) -> None:
        """Store one answer; on return it is on disk. LeadlineError where a figure is not finite."""
        refuse_not_finite(answer.model_dump(), f"{answer.task} {answer.sample}")
        with self._results.transaction() as db:
            values = answer.model_dump(mode="json")
            db.add(RulerAnswerRow(protocol_id=self.protocol, measurement_id=self._measurement, **values))


def protocols(results: Results) -> list[tuple[int, RulerProtocol]]:
    """Every protocol of a database with its number, oldest first; none in an older file."""
    if not results.has(RulerProtocolRow.__tablename__):
        return []
    with results.transaction() as db:
        rows = db.scalars(select(RulerProtocolRow).order_by(RulerProtocolRow.id))
        return [(row.id, record_of(RulerProtocol, row)) for row in rows]


def load(results: Results, protocol: int) -> tuple[Sequence[RulerScanner], Sequence[RulerAnswer]]:
    """The scanners of a protocol in their order, and its answers by task, sample and the order they were given in."""
    with results.transaction() as db:
        scanners = select(RulerScannerRow).filter_by(protocol_id=protocol)
        answers = select(RulerAnswerRow).filter_by(protocol_id=protocol)
        return (
            [
                record_of(RulerScanner, row)
                for row in db.scalars(scanners.order_by(RulerScannerRow.position, RulerScannerRow.label))
            ],
            [record_of(RulerAnswer, row) for row in db.scalars(answers.order_by(RulerAnswerRow.id))],
        )
