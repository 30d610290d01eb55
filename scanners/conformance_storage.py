"""The contract clause about what a scanner stores: its index and nothing else, and no more than the index states.

Stored bytes are counted from the index's fields, so a scanner that keeps keys anywhere else looks cheaper than it is.
Peeking clauses cannot see one that looks keys up by what was delivered. So this clause walks everything the scanner
holds (its attributes, its classes, closures and globals of its functions, the state, the index) before and after a
decode step, and takes a census of the tensors that outlive it. What only C++ holds, or a C extension, is not seen.
"""

from __future__ import annotations

import array
import gc
import hashlib
import sys
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType

import numpy as np
import torch
from torch import Tensor

from leadline.scanners.base import Index, Scanner
from leadline.scanners.conformance_cases import Trial, expect
from leadline.scanners.transfer import fetch

MOST_OBJECTS = 50_000  # of one walk, nearest first; a scanner's own things are a few hundred
SPARE_BYTES = 256  # a counter, a label: no store
_NUMBERS = (int, float, complex)
_BUFFERS = (bytes, bytearray, memoryview, array.array)


@dataclass(frozen=True)
class Held:
    """Something with bytes that a walk found: under which name, how many, and what they are."""

    where: str
    nbytes: int
    digest: bytes
    address: int
    item: object  # alive as long as this record, so that its id is nobody else's


def stored(trial: Trial) -> None:
    """Between calls a scanner holds its index and its state alone, and the index holds no more bytes than it states."""
    scanner, state, query = trial.scanner, trial.state, trial.query
    keys = trial.case.keys(seed=11)  # which no other clause has built from: what is kept of them is kept now
    limit = SPARE_BYTES + keys.shape[0] * keys.shape[1] // 8
    roots = {"the scanner": scanner, "the state": state, **_code(scanner)}
    before = walk(roots, scanner)
    with _census() as newborn:
        built = scanner.build(keys, state)
        scanner.score(query, fetch(built, scanner.plan(query, state, built)).reads, state)
        del keys
    if scanner.reads_rows:
        return
    _nothing_behind(built)
    own = {_address(field) for field in built.fields.values()} - {0}
    after = walk(roots | {"the index": built}, scanner)
    kept = {
        held.address or id(held.item): held
        for place, held in after.items()
        if held.address not in own and (place not in before or before[place].digest != held.digest)
    }
    known = {held.address for held in before.values()}
    for tensor in _others(newborn, own | known):
        held = Held(f"a tensor {list(tensor.shape)}", tensor.untyped_storage().nbytes(), b"", _address(tensor), tensor)
        kept.setdefault(_address(tensor) or id(tensor), held)
    nbytes = sum(held.nbytes for held in kept.values())
    largest = sorted(kept.values(), key=lambda held: -held.nbytes)[:3]
    shown = ", ".join(f"{held.where} ({held.nbytes} bytes)" for held in largest)
    expect(
        nbytes <= limit,
        f"after a decode step {nbytes} bytes are kept outside the index's fields, which state {built.nbytes}: {shown}; "
        "put all that build makes into the index's fields, where it is counted",
    )


def walk(roots: Mapping[str, object], scanner: Scanner) -> dict[int, Held]:
    """Everything with bytes that can be reached from `roots`, by id; modules and others' classes are not entered."""
    own = _own_classes(scanner)
    modules = {cls.__module__ for cls in own}
    found: dict[int, Held] = {}
    seen: dict[int, object] = {}
    queue = deque(roots.items())
    while queue and len(seen) < MOST_OBJECTS:
        where, item = queue.popleft()
        if id(item) in seen or isinstance(item, ModuleType) or (isinstance(item, type) and item not in own):
            continue
        seen[id(item)] = item
        held = _held(where, item)
        if held is not None:
            found[id(item)] = held
        queue.extend(_next(where, item, modules))
    return found


def _next(where: str, item: object, modules: set[str]) -> Iterator[tuple[str, object]]:
    if isinstance(item, FunctionType):  # its globals are a module: entered where the module is the scanner's own
        yield from ((item.__qualname__, part) for part in (item.__closure__, item.__defaults__, item.__kwdefaults__))
        yield from ((item.__qualname__, part) for part in (vars(item), getattr(item, "__wrapped__", None)))
        if item.__module__ in modules:
            yield from ((f"global {name}", value) for name, value in list(item.__globals__.items()))
    elif isinstance(item, dict):
        yield from ((_named(where, key), value) for key, value in list(item.items()))
        yield from ((where, key) for key in list(item))
    elif isinstance(item, np.ndarray) and item.dtype == object:
        yield from ((where, part) for part in item.flat)
    else:
        yield from ((where, part) for part in gc.get_referents(item))


def _named(where: str, key: object) -> str:
    return key if isinstance(key, str) and not key.startswith("__") else where


def _held(where: str, item: object) -> Held | None:
    if isinstance(item, Tensor):
        item_bytes = item.untyped_storage()
        return Held(where, item_bytes.nbytes(), _digest(item_bytes), item_bytes.data_ptr(), item)
    if isinstance(item, torch.UntypedStorage):
        return Held(where, item.nbytes(), _digest(item), item.data_ptr(), item)
    if isinstance(item, np.ndarray):
        return Held(where, item.nbytes, hashlib.blake2b(item.tobytes()).digest(), item.ctypes.data, item)
    if isinstance(item, _BUFFERS):
        content = bytes(item)
        return Held(where, len(content), hashlib.blake2b(content).digest(), 0, item)
    if isinstance(item, (str, *_NUMBERS)):
        size = len(item) if isinstance(item, str) else max(8, sys.getsizeof(item) - 24)
        return Held(where, size, repr(item).encode(), 0, item)
    return None


def _digest(storage: torch.UntypedStorage) -> bytes:
    content = torch.empty(0, dtype=torch.uint8).set_(storage)
    return hashlib.blake2b(content.numpy().tobytes()).digest()


def _own_classes(scanner: Scanner) -> list[type]:
    """The scanner's classes below the protocol itself."""
    return [cls for cls in type(scanner).__mro__ if cls not in Scanner.__mro__]


def _code(scanner: Scanner) -> dict[str, object]:
    return {f"class {cls.__name__}": dict(vars(cls)) for cls in _own_classes(scanner)}


def _nothing_behind(built: Index) -> None:
    """ViolationError where the memory behind the fields is larger than the fields."""
    for name, field in built.fields.items():
        expect(type(field) is Tensor, f"field {name!r} is a {type(field).__name__}; expected a plain torch.Tensor")
    storages = {_address(field): field.untyped_storage().nbytes() for field in built.fields.values()}
    behind = sum(storages.values())
    expect(
        behind <= built.nbytes,
        f"the index states {built.nbytes} bytes and its fields are views of {behind}; make every field a copy",
    )


@contextmanager
def _census() -> Iterator[list[weakref.ref[Tensor]]]:
    """The tensors made inside that are still alive at its end, whoever holds them; filled in there."""
    newborn: list[weakref.ref[Tensor]] = []
    was_enabled = gc.isenabled()
    gc.disable()  # what is made inside then stays in the youngest generation, which is quick to look through
    try:
        old = gc.get_objects(generation=0)
        ids = set(map(id, old))
        collections = _collections()
        yield newborn
        expect(_collections() == collections, "the scanner ran the garbage collector, which hides what it keeps")
        newborn += [weakref.ref(each) for each in _tensors(gc.get_objects(generation=0)) if id(each) not in ids]
    finally:
        if was_enabled:
            gc.enable()


def _others(newborn: Iterable[weakref.ref[Tensor]], known: Collection[int]) -> list[Tensor]:
    """Those that are still alive and whose memory is not one of the known."""

    def alive() -> list[Tensor]:
        return [each for reference in newborn if (each := reference()) is not None and _address(each) not in known]

    if alive():
        gc.collect()  # held by nobody but a cycle
    return alive()


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def _tensors(objects: Iterable[object]) -> list[Tensor]:
    return [each for each in objects if issubclass(type(each), Tensor)]  # type: ignore[misc]
