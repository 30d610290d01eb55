"""Contract clauses about form and arithmetic: options, shapes, planned bytes, positions, heads (SPEC sections 2-4)."""

from __future__ import annotations

import inspect
from typing import get_args

import torch
from pydantic import ValidationError
from torch import Tensor

from leadline.scanners.base import Gate, Index, ReadPlan, Scanner, State, TailView
from leadline.scanners.conformance_cases import Trial, close, expect, same_bits
from leadline.scanners.transfer import fetch

_NEEDS = ("nothing", "calibration", "session")


def config(trial: Trial) -> None:
    """The scanner is a frozen set of options, and its label describes it completely."""
    scanner = trial.scanner
    cls = type(scanner)
    expect(
        bool(cls.model_config.get("frozen")) and cls.model_config.get("extra") == "forbid",
        "the class must stay frozen and forbid unknown options: keep the model_config of Scanner as it is",
    )
    for option in cls.model_fields:
        try:
            setattr(scanner, option, getattr(scanner, option))
        except ValidationError:
            continue
        expect(False, f"option {option!r} could be assigned after construction; options must be frozen")
    name = cls.name
    bad = sorted(set(name) & set(":,=/ \t\n"))
    expect(bool(name) and not bad, f"name is {name!r}; expected a word without any of ': , = /' or spaces")
    expect(scanner.needs in _NEEDS, f"needs is {scanner.needs!r}; expected one of {', '.join(_NEEDS)}")
    expect(
        isinstance(scanner.store, str) and bool(scanner.store),
        f"store is {scanner.store!r}; expected a non-empty string",
    )
    parameters = list(inspect.signature(cls.score).parameters)
    expect(
        len(parameters) == 4,
        f"score takes {parameters}; expected exactly (self, query, reads, state): it never gets keys",
    )
    _label_round_trips(scanner)


def _label_round_trips(scanner: Scanner) -> None:
    label = scanner.label
    head, _, text = label.partition(":")
    expect(head == scanner.name, f"label is {label!r}; expected it to begin with the name {scanner.name!r}")
    pairs = [part.partition("=") for part in text.split(",") if part]
    try:
        again = type(scanner)(**{key: value for key, _, value in pairs})
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        expect(False, f"label {label!r} does not make a scanner when given back as a spec: {reason}")
    else:
        expect(
            again == scanner, f"label {label!r} makes another scanner when given back: {again!r} instead of {scanner!r}"
        )


def calibrate(trial: Trial) -> None:
    """`calibrate` works on what `needs` asks for (None for "nothing") and gives a finite State."""
    state = trial.state
    expect(
        isinstance(state, State), f"calibrate returned {type(state).__name__}; expected leadline.scanners.base.State"
    )
    for name, tensor in state_tensors(state).items():
        expect(
            not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()),
            f"state.{name} holds values that are not finite",
        )


def index(trial: Trial) -> None:
    """The index states truthfully what it stores: shapes, tokens per item, bytes."""
    built = trial.build()
    n = trial.case.keys().shape[1]
    expect(
        type(built) is Index, f"build returned {type(built).__name__}; expected a plain leadline.scanners.base.Index"
    )
    expect(built.tokens == n, f"index.tokens is {built.tokens}; expected the {n} tokens that were given")
    expect(
        set(built.fields) == set(built.tokens_per_item),
        f"tokens_per_item names {sorted(built.tokens_per_item)}; expected the fields {sorted(built.fields)}",
    )
    channels = {tuple(tensor.shape[:2]) for tensor in built.fields.values()}
    expect(
        len(channels) <= 1, f"fields differ in their leading [H, d]: {sorted(channels)}; a plan covers all fields alike"
    )
    total = 0.0
    for name, tensor in built.fields.items():
        expect(
            tensor.dim() == 4 and tensor.shape[0] == trial.case.heads,
            f"field {name!r} has shape {tuple(tensor.shape)}; expected [H={trial.case.heads}, d, levels, items]",
        )
        per_item, items = built.tokens_per_item[name], tensor.shape[3]
        expect(
            items * per_item == n,
            f"field {name!r} holds {items} items of {per_item} tokens; expected them to cover the {n} tokens exactly",
        )
        total += float(built.bits(name)) * tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * n / 8
    expect(
        built.nbytes == total,
        f"index.nbytes is {built.nbytes}; its fields hold {total:g} bytes at their stated bits per token",
    )
    if built.basis is not None and built.fields:
        columns, stored = built.basis.vectors.shape[-1], next(iter(channels))[1]
        expect(
            columns == stored,
            f"the basis has {columns} coordinates and the fields {stored} channels; expected equal numbers",
        )


def plan(trial: Trial) -> None:
    """The plan names stored fields, in whole levels that exist, and a way for the tail to compete."""
    built = trial.build()
    made = trial.plan(built)
    expect(
        type(made) is ReadPlan, f"plan returned {type(made).__name__}; expected a plain leadline.scanners.base.ReadPlan"
    )
    expect(
        made.tail in get_args(TailView), f"plan.tail is {made.tail!r}; expected one of {', '.join(get_args(TailView))}"
    )
    unknown = sorted(set(made.depth) - set(built.fields))
    expect(not unknown, f"the plan reads fields {unknown} that the index does not have; it has {sorted(built.fields)}")
    for name, levels in made.depth.items():
        heads, channels, most = built.fields[name].shape[:3]
        expect(levels.dtype == torch.int64, f"plan.depth[{name!r}] is {levels.dtype}; expected torch.int64")
        expect(
            tuple(levels.shape) in {(heads, channels), (1, heads, channels)},
            f"plan.depth[{name!r}] has shape {tuple(levels.shape)}; expected {(heads, channels)} when it does not "
            f"depend on the query, or {(1, heads, channels)} for a query of one position",
        )
        low, high = int(levels.min()), int(levels.max())
        expect(
            low >= 0 and high <= most,
            f"plan.depth[{name!r}] asks for {low}..{high} levels; the field has levels 0..{most}",
        )
    _gate(made, built)
    if made.tail == "channels":
        active = made.active
        expect(active is not None, 'plan.tail is "channels" but the plan reads no field; expected "keys" or "position"')
        expected = trial.case.head_dim if built.basis is None else built.basis.vectors.shape[-1]
        found = active.shape[-1] if active is not None else 0
        expect(found == expected, f"the plan covers {found} channels; the tail is scored on {expected}")


def _gate(made: ReadPlan, built: Index) -> None:
    gate = made.gate
    if gate is None:
        return
    expect(type(gate) is Gate, f"the gate is a {type(gate).__name__}; expected a plain leadline.scanners.base.Gate")
    unknown = sorted(set(gate.fields) - set(made.depth))
    expect(not unknown, f"the gate stands before fields {unknown} that the plan does not read")
    expect(set(made.depth) != set(gate.fields), "every field stands behind the gate; one must be read to decide it")
    widths = {built.fields[name].shape[3] for name in gate.fields}
    expect(len(widths) == 1, f"fields behind the gate hold {sorted(widths)} items; one choice must fit them all")
    expect(0 <= gate.items <= min(widths), f"the gate lets {gate.items} of {min(widths)} items through")


def scores(trial: Trial) -> None:
    """Scores are fp32 `[T, H, G, n]`, finite, for one position and for three."""
    built = trial.build()
    for positions in (1, 3):
        query = trial.case.query(positions)
        found = trial.score(trial.deliver(built, query), query)
        shape = (positions, trial.case.heads, trial.case.group, built.tokens)
        expect(tuple(found.shape) == shape, f"score gave shape {tuple(found.shape)}; expected [T, H, G, n] = {shape}")
        expect(found.dtype == torch.float32, f"score gave {found.dtype}; expected torch.float32")
        bad = int((~torch.isfinite(found)).sum())
        expect(bad == 0, f"{bad} of {found.numel()} scores are NaN or infinite; expected finite numbers")


def nbytes(trial: Trial) -> None:
    """Planned bytes equal the bytes that were moved, for one position; the union is moved for several."""
    built = trial.build()
    made = trial.plan(built)
    bits = made.bits_per_token(built)
    planned = (float(bits.sum()) if isinstance(bits, Tensor) else trial.case.heads * bits) * built.tokens / 8
    moved = fetch(built, made).nbytes
    if made.gate is not None:
        planned = round(planned, 6)  # a share of the items may be no binary fraction
    expect(
        planned == moved,
        f"the plan reports {planned:g} bytes and the transfer moved {moved}; expected them to be equal",
    )
    made = trial.plan(built, trial.case.query(3))
    delivery = fetch(built, made)
    union = 0
    for name, levels in made.depth.items():
        deepest = levels if levels.dim() == 2 else levels.amax(0)
        field = built.fields[name]
        items: int | Tensor = field.shape[-1]
        if made.gate is not None and name in made.gate.fields:
            chosen = delivery.reads.items
            assert chosen is not None
            items = (chosen if chosen.dim() == 2 else chosen.any(0)).sum(-1)
        union += int((deepest.sum(-1) * items).sum()) * field.element_size()
    moved = delivery.nbytes
    expect(union == moved, f"three positions together plan {union} bytes and the transfer moved {moved}")


def positions(trial: Trial) -> None:
    """Several positions in one call give what each gives alone."""
    built = trial.build()
    query = trial.case.query(3)
    together = trial.plan(built, query)
    found = trial.score(fetch(built, together), query)
    for i in range(3):
        alone = query[i : i + 1]
        made = trial.plan(built, alone)
        for name, levels in made.depth.items():
            batched = together.depth[name]
            ours = batched if batched.dim() == 2 else batched[i : i + 1]
            expect(
                torch.equal(ours.expand_as(levels), levels),
                f"position {i} of 3 reads other levels of {name!r} in a batch than alone; plan each position by itself",
            )
        single = trial.score(fetch(built, made), alone)
        expect(
            close(found[i : i + 1], single),
            f"position {i} of 3 scores differently in a batch than alone (largest difference "
            f"{float((found[i : i + 1] - single).abs().max()):g}); score each position by itself",
        )


def heads(trial: Trial) -> None:
    """KV head 0 does not depend on the keys or the queries of the other heads; with `shares_budget` its plan may."""
    if trial.case.heads == 1:
        return
    keys = trial.case.keys()
    other = keys.clone()
    other[1:] = trial.case.keys(seed=3)[1:]
    ours, theirs = (trial.scanner.build(k, trial.state) for k in (keys, other))
    for name in ours.fields:
        expect(
            same_bits(ours.fields[name][0], theirs.fields[name][0]),
            f"field {name!r} of KV head 0 changes with the keys of other heads; index every head by itself",
        )
    before, after = (trial.score(trial.deliver(built))[:, 0] for built in (ours, theirs))
    expect(
        same_bits(before, after), "scores of KV head 0 change with the keys of other heads; score every head by itself"
    )
    query = trial.query.clone()
    query[:, 1:] = trial.case.query(1, seed=3)[:, 1:]
    if trial.scanner.shares_budget:
        after = trial.score(trial.deliver(ours), query)[:, 0]
        text = "scores of KV head 0 change with the queries of other heads, for one and the same delivery"
        expect(close(after, before), f"{text}; only the plan may be shared")
        return
    for name, levels in trial.plan(ours).depth.items():
        expect(
            torch.equal(levels[..., 0, :], trial.plan(ours, query).depth[name][..., 0, :]),
            f"the plan of KV head 0 for {name!r} changes with the queries of other heads; plan every head by itself",
        )
    after = trial.score(trial.deliver(ours, query), query)[:, 0]
    expect(
        close(after, before), "scores of KV head 0 change with the queries of other heads; score every head by itself"
    )


def reference(trial: Trial) -> None:
    """A scanner that reads the rows themselves ranks by q.k exactly."""
    if not trial.scanner.reads_rows:
        return
    found = trial.score(trial.deliver(trial.build()))
    exact = trial.query @ trial.case.keys().to(torch.float32).transpose(-1, -2)
    expect(close(found, exact, 1e-5), "reads_rows is set, but the scores are not q.k of the rows")


def state_tensors(state: State) -> dict[str, Tensor]:
    """Every tensor of a state by name."""
    found = {name: value for name in ("variance", "channels") if (value := getattr(state, name)) is not None}
    if state.basis is not None:
        found |= {f"basis.{name}": getattr(state.basis, name) for name in ("mean", "vectors", "variance")}
    return found | {f"extra[{name!r}]": value for name, value in state.extra.items()}
