"""The contract suite passes every built-in scanner and catches every cheating one by the clause named with it."""

from __future__ import annotations

import cheating_scanners as cheats
import hiding_scanners as hiding
import pytest
from cases import CASES, SCANNERS, ScannerCase
from pydantic import PrivateAttr
from torch import Tensor

from leadline.registry import BUILT_IN, create
from leadline.scanners.base import Index, Reads, Scanner, State
from leadline.scanners.conformance import CLAUSES, check, describe
from leadline.scanners.conformance_cases import CASES as KEY_SETS
from leadline.scanners.conformance_cases import Trial, ViolationError, close, same_bits, static_bits


@pytest.mark.parametrize("spec", [*SCANNERS, "dense"])
def test_built_in_keeps_the_contract(spec: str) -> None:
    findings = check(create(spec))
    assert [f.name for f in findings] == list(CLAUSES)
    assert [f"{f.name}: {f.detail}" for f in findings if not f.passed] == []


@pytest.mark.parametrize("cls", [cheats.Honest, cheats.Gated])
def test_the_honest_base_of_the_cheats_passes(cls: type[Scanner]) -> None:
    assert [f"{f.name}: {f.detail}" for f in check(cls()) if not f.passed] == []


@pytest.mark.parametrize(("cls", "clause"), cheats.CHEATS, ids=lambda value: getattr(value, "__name__", value))
def test_a_cheat_is_caught_by_its_clause(cls: type[Scanner], clause: str) -> None:
    cheats.HIDDEN.clear()
    failed = {f.name: f.detail for f in check(cls()) if not f.passed}
    assert clause in failed
    assert len(failed[clause]) > 40, "a finding says what was expected and found"
    if issubclass(cls, hiding.KeepsByContent):
        assert set(failed) == {"stored"}, "its scores follow what was delivered: nothing else can tell"


@pytest.mark.parametrize(
    ("cls", "reason"),
    [(hiding.HidesNumbers, "bytes are kept outside"), (hiding.CollectsGarbage, "ran the garbage collector")],
)
def test_what_is_slow_to_hide_is_caught_too(cls: type[Scanner], reason: str) -> None:
    with pytest.raises(ViolationError, match=reason):
        CLAUSES["stored"](Trial(cls(), KEY_SETS[0]))


def test_a_counter_is_no_store() -> None:
    class Counts(cheats.Honest):
        _calls: list[int] = PrivateAttr(default_factory=lambda: [0])

        def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
            self._calls[0] += 1
            return super().score(query, reads, state)

    CLAUSES["stored"](Trial(Counts(), KEY_SETS[0]))


def test_every_clause_catches_some_cheat() -> None:
    assert set(CLAUSES) - {clause for _, clause in cheats.CHEATS} == set()
    assert all(describe(name) for name in CLAUSES)


def test_an_exception_of_the_scanner_is_a_finding_with_its_place() -> None:
    class Broken(cheats.Honest):
        def score(self, query: Tensor, reads: Reads, state: State) -> Tensor:
            raise KeyError("gone")

    failed = {f.name: f.detail for f in check(Broken()) if not f.passed}
    assert "KeyError" in failed["scores"]
    assert "test_contract.py:" in failed["scores"]
    assert "n=128" in failed["scores"]


def test_cases_cover_every_built_in() -> None:
    assert {spec.partition(":")[0] for spec in SCANNERS} == set(BUILT_IN) - {"dense"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.spec)
def test_scan_bits(case: ScannerCase) -> None:
    scanner = create(case.spec)
    assert static_bits(scanner, 128) == case.bits_128
    assert static_bits(scanner, 64) == case.bits_64


@pytest.mark.parametrize("spec", SCANNERS)
def test_label_is_a_spec_of_the_same_scanner(spec: str) -> None:
    scanner = create(spec)
    assert create(scanner.label) == scanner
    assert create(scanner.label).label == scanner.label


def test_scanners_that_share_a_store_build_equal_indexes() -> None:
    case = KEY_SETS[0]
    built: dict[str, tuple[str, Index]] = {}
    for spec in SCANNERS:
        scanner = create(spec)
        index = Trial(scanner, case).build()
        other, first = built.setdefault(scanner.store, (spec, index))
        for name, field in index.fields.items():
            assert same_bits(first.fields[name], field), f"{spec} and {other} share {scanner.store!r}"
    assert len(built) < len(SCANNERS)


@pytest.mark.parametrize("spec", SCANNERS)
def test_any_leading_dimensions_and_no_tokens(spec: str) -> None:
    """Shapes the harness may come to use: two leading dimensions, none, and a context of less than one block."""
    trial = Trial(create(spec), KEY_SETS[0])
    index, query = trial.build(), trial.case.query(6)
    scores = trial.score(trial.deliver(index, query), query)
    for shaped in (query.unflatten(0, (2, 3)), query[0]):
        found = trial.score(trial.deliver(index, shaped), shaped)
        assert found.shape == (*shaped.shape[:-1], index.tokens)
        assert close(found.reshape(-1, *scores.shape[1:]), scores[: found.numel() // scores[0].numel()])
    empty = trial.scanner.build(trial.case.keys()[:, :0], trial.state)
    assert empty.nbytes == 0
    assert trial.score(trial.deliver(empty, query), query).shape == (*query.shape[:-1], 0)


def test_the_store_costs_68_bytes_per_token_per_head() -> None:
    case = KEY_SETS[1]
    index = Trial(create("full4"), case).build()
    assert case.head_dim == 128
    assert index.nbytes == 68 * index.tokens * case.heads
