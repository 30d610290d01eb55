"""Stores filled in chunks hold what a build at once gives, follow a rewind, and are shared by equal scanners."""

from __future__ import annotations

from collections.abc import Iterator

import cheating_scanners
import pytest
import torch
from cases import SCANNERS
from interpreted import kernels_of
from torch import Tensor

from leadline.errors import MachineError, UsageError
from leadline.host.index_store import ROW_BYTES, IndexStore
from leadline.host.stores import Placement, RowStore, SessionStores, WholeStore, is_block_local
from leadline.model import ModelShape
from leadline.registry import create
from leadline.rows import Rows
from leadline.scanners.base import Index, Scanner, State
from leadline.scanners.conformance_cases import Case, Trial

HEADS, D, LAYERS = 2, 64, (1, 3)
SHAPE = ModelShape(
    layers=4,
    scanned_layers=LAYERS,
    query_heads=4,
    kv_heads=HEADS,
    head_dim=D,
    groups=2,
    vocabulary=10,
    max_positions=4096,
)
BLOCK_LOCAL = [spec for spec in SCANNERS if spec != "exact"]


def case_of(layer: int, dtype: torch.dtype = torch.float32) -> Case:
    """Layers differ in the spread of their channels."""
    return Case("skewed" if layer == 1 else "normal", heads=HEADS, group=2, head_dim=D, blocks=30, dtype=dtype)


def keys_of(n: int, layer: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return case_of(layer, dtype).keys(seed=layer)[:, :n]


def states_of(scanner: Scanner) -> dict[int, State]:
    return {layer: Trial(scanner, case_of(layer)).state for layer in LAYERS}


def rows_of(capacity: int, dtype: torch.dtype = torch.float32) -> Rows:
    return Rows(SHAPE, capacity, dtype=dtype)


def feed(rows: Rows, until: int, shift: float = 0.0) -> None:
    start = rows.length
    for layer in range(SHAPE.layers):
        new = (keys_of(until, layer, torch.float32)[:, start:] + shift).unsqueeze(0).to(rows.layers[layer].dtype)
        rows.layers[layer].update(new, -new)


def require_equal(found: Index, expected: Index) -> None:
    assert found.tokens == expected.tokens
    assert found.block == expected.block
    assert dict(found.tokens_per_item) == dict(expected.tokens_per_item)
    assert found.basis is expected.basis
    assert set(found.fields) == set(expected.fields)
    for name, field in expected.fields.items():
        assert found.fields[name].dtype == field.dtype
        assert torch.equal(found.fields[name], field), name
    assert found.nbytes == expected.nbytes


def chunks(n: int) -> Iterator[tuple[int, int]]:
    """Chunks of several sizes, none of them a piece's: 1, 7, 1, 9, ... blocks."""
    at, sizes = 0, (64, 448, 64, 576, 128)
    for i in range(n):
        if at >= n:
            return
        end = min(n, at + sizes[i % len(sizes)])
        yield at, end
        at = end


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spec", BLOCK_LOCAL)
def test_a_store_built_in_chunks_is_the_store_built_at_once(spec: str, dtype: torch.dtype) -> None:
    scanner = create(spec)
    states = states_of(scanner)
    store = IndexStore(scanner, states, HEADS, D, 1500, where="device", device=torch.device("cpu"), dtype=dtype)
    for field in store.fields.values():
        field.fill_(77)
    n = 1472
    for layer in LAYERS:
        for start, end in chunks(n):
            store.extend(layer, keys_of(n, layer, dtype)[:, start:end], start // 64)
    store.verify()
    assert store.blocks == n // 64
    for layer in LAYERS:
        require_equal(store.index(layer), scanner.build(keys_of(n, layer, dtype), states[layer]))
        require_equal(store.index(layer, 5), scanner.build(keys_of(320, layer, dtype), states[layer]))
    assert store.nbytes == sum(index.nbytes for index in store.indexes().values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu checks it there")
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("spec", ["thumbnail", "fathom:budget=48,basis=rotated", "double_sparsity:channels=32"])
def test_the_gpus_path_packs_planes_to_where_they_belong(spec: str) -> None:
    kernels_of("planes")  # interpreted from here on
    scanner = create(spec)
    states = states_of(scanner)
    store = IndexStore(scanner, states, HEADS, D, 900, where="device", device=torch.device("cpu"), dtype=torch.float32)
    assert not store._packs
    store._packs = True
    for field in store.fields.values():
        field.fill_(77)
    for layer in LAYERS:
        for start, end in ((0, 64), (64, 704), (704, 832)):
            store.extend(layer, keys_of(832, layer)[:, start:end], start // 64)
        require_equal(store.index(layer), scanner.build(keys_of(832, layer), states[layer]))
    store.verify()
    for field in store.fields.values():
        assert bool((field[..., 13:] == 77).all()), "nothing is written past the blocks that were built"
    bad = keys_of(896)[:, 832:].clone()
    bad[0, 5] = 1e6
    store.extend(1, bad, 13)
    with pytest.raises(ValueError, match="above 65504"):
        store.verify()


@pytest.mark.parametrize("spec", ["fathom:budget=48", "landmarks", "loki:r=32,precision=fp16"])
def test_rows_of_a_store_begin_at_lines_and_padding_is_not_charged(spec: str) -> None:
    scanner = create(spec)
    store = IndexStore(
        scanner, states_of(scanner), HEADS, D, 700, where="device", device=torch.device("cpu"), dtype=torch.float32
    )
    for field in store.fields.values():
        assert all(step * field.element_size() % ROW_BYTES == 0 for step in field.stride()[:-1])
        assert field.stride(-1) == 1
    assert store.nbytes == 0
    for layer in LAYERS:
        store.extend(layer, keys_of(640, layer), 0)
    per_token = store.nbytes / (640 * HEADS * len(LAYERS))
    assert per_token == {"fathom": 4.25 * D / 8, "landmarks": 2 * D / 8, "loki": 2 * 16}[scanner.name]
    assert store.nbytes <= store.allocated_bytes
    assert store.allocated_bytes == sum(f.untyped_storage().nbytes() for f in store.fields.values())


def test_a_hole_a_part_of_a_block_and_too_much_are_refused() -> None:
    scanner = create("thumbnail")
    store = IndexStore(
        scanner, states_of(scanner), HEADS, D, 256, where="device", device=torch.device("cpu"), dtype=torch.float32
    )
    for tokens, first in ((64, 1), (100, 0), (320, 0), (64, -1)):
        with pytest.raises(ValueError, match="cannot put"):
            store.extend(1, keys_of(tokens), first)
    store.extend(1, keys_of(128), 0)
    assert store.blocks == 0, "the other layer holds nothing yet"
    with pytest.raises(ValueError, match="holds 2 blocks, not 3"):
        store.index(1, 3)


@pytest.mark.parametrize("spec", ["fathom:budget=48", "quest", "exact", "streaming"])
def test_session_stores_follow_the_rows_there_and_back(spec: str) -> None:
    scanner, rows = create(spec), rows_of(900)
    states = states_of(scanner)
    stores = SessionStores(rows, LAYERS, Placement())
    for until in (100, 128, 333):
        feed(rows, until)
        stores.advance(rows)
        if until == 128:
            assert stores.of(scanner, states).blocks == 2
    found = stores.of(scanner, states)
    assert stores.of(scanner, states) is found
    for layer in LAYERS:
        require_equal(found.index(layer), scanner.build(rows.keys(layer)[:, :320], states[layer]))
    rows.rewind(150)
    stores.rewind(150)
    feed(rows, 700, shift=1.5)  # another continuation of the first 150 tokens
    stores.advance(rows)
    found = stores.of(scanner, states)
    assert found.blocks == 10
    for layer in LAYERS:
        require_equal(found.index(layer), scanner.build(rows.keys(layer)[:, :640], states[layer]))


def test_a_store_asked_for_late_catches_up_and_equal_stores_are_one() -> None:
    rows = rows_of(900)
    stores = SessionStores(rows, LAYERS, Placement())
    feed(rows, 800)
    stores.advance(rows)
    fathom, sparq, rotated = map(create, ("fathom:budget=48", "sparq:r=16", "fathom:budget=48,basis=rotated"))
    late = stores.of(fathom, states_of(fathom))
    assert late.blocks == 12
    assert stores.of(sparq, states_of(sparq)) is late
    assert stores.of(rotated, states_of(rotated)) is not late
    require_equal(late.index(3), fathom.build(rows.keys(3)[:, :768], State()))
    assert stores.allocated_bytes > 0
    assert late.build_seconds > 0


def test_the_oracles_store_is_the_rows_themselves() -> None:
    rows, scanner = rows_of(300), create("exact")
    stores = SessionStores(rows, LAYERS, Placement())
    feed(rows, 200)
    stores.advance(rows)
    found = stores.of(scanner, states_of(scanner))
    assert found.nbytes == 0
    assert found.index(1).fields["keys"].data_ptr() == rows.keys(1).data_ptr()
    assert stores.keys(1).data_ptr() == rows.keys(1).data_ptr()
    assert torch.equal(stores.values(3)[:, :200], rows.values(3))


class NotBlockLocal(cheating_scanners.Honest):
    """A plugin whose store depends on all keys: everything is centred by the mean of all of them."""

    def build(self, keys: Tensor, state: State, block: int = 64) -> Index:
        return super().build(keys - keys.mean(1, keepdim=True), state, block)


def test_a_plugins_store_is_built_at_once_whenever_there_is_more() -> None:
    rows, scanner = rows_of(600), NotBlockLocal()
    assert not is_block_local(scanner)
    stores = SessionStores(rows, LAYERS, Placement())
    states = states_of(scanner)
    for until in (150, 450):
        feed(rows, until)
        stores.advance(rows)
        found = stores.of(scanner, states)
        assert isinstance(found, WholeStore)
        assert found.blocks == until // 64
        for layer in LAYERS:
            require_equal(found.index(layer), scanner.build(rows.keys(layer)[:, : until // 64 * 64], states[layer]))
    before = found.index(1)
    assert stores.of(scanner, states).index(1) is before, "nothing new: nothing is built"
    stores.rewind(100)
    rows.rewind(100)
    feed(rows, 450, shift=2.0)
    stores.advance(rows)
    again = stores.of(scanner, states).index(1)
    assert again is not before
    assert not torch.equal(again.fields["planes"], before.fields["planes"])


def test_branches_leave_a_store_alone() -> None:
    rows, scanner = rows_of(400), create("thumbnail")
    stores = SessionStores(rows, LAYERS, Placement())
    feed(rows, 260)
    stores.advance(rows)
    index = stores.of(scanner, states_of(scanner)).index(1)
    before = {name: field.clone() for name, field in index.fields.items()}
    feed(rows, 390)  # a branch decodes and is rewound
    rows.rewind(260)
    assert stores.of(scanner, states_of(scanner)).blocks == 4
    assert all(torch.equal(before[name], field) for name, field in index.fields.items())


def test_rows_are_kept_as_records() -> None:
    store = RowStore(LAYERS, HEADS, D, 320, where="device", device=torch.device("cpu"), dtype=torch.bfloat16)
    keys, values = keys_of(192, 1, torch.bfloat16), keys_of(192, 2, torch.bfloat16)
    store.put(3, 0, keys[:, :64], values[:, :64])
    store.put(3, 64, keys[:, 64:], values[:, 64:])
    assert store.records(3).shape == (HEADS, 320, 2, D)
    assert torch.equal(store.records(3)[:, :192], torch.stack([keys, values], 2))
    assert torch.equal(store.keys(3)[:, :192], keys)
    assert torch.equal(store.values(3)[:, :192], values)
    assert store.allocated_bytes == len(LAYERS) * HEADS * 320 * 2 * D * 2
    with pytest.raises(ValueError, match="cannot put rows 256 to 448"):
        store.put(3, 256, keys, values)


def test_placements_have_names() -> None:
    assert {name: Placement.parse(name).name for name in ("device", "rows-host", "host")} == {
        "device": "device",
        "rows-host": "rows-host",
        "host": "host",
    }
    assert Placement.parse("rows-host") == Placement(index="device", rows="host")
    with pytest.raises(UsageError, match="'gpu'"):
        Placement.parse("gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["rows-host", "host"])
def test_host_placement_needs_a_gpu(name: str) -> None:
    with pytest.raises(MachineError, match="needs a GPU"):
        SessionStores(rows_of(300), LAYERS, Placement.parse(name))
    scanner = create("thumbnail")
    with pytest.raises(MachineError, match="index of planes needs a GPU"):
        IndexStore(
            scanner, states_of(scanner), HEADS, D, 300, where="host", device=torch.device("cpu"), dtype=torch.float32
        )
