"""Contract clauses about what a scanner may see: what the transfer delivered, and it changes nothing (SPEC section 3).

The suite is suspicious on purpose. A scanner that peeks at keys or at unread parts of its index looks excellent in
every report, so each way of peeking has a clause that catches it: stored bytes and keys are overwritten, deliveries of
two key sets are mixed head by head, and inputs are compared byte by byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from leadline.scanners.base import Delivery, ReadPlan, Reads
from leadline.scanners.conformance_cases import Trial, expect, same_bits
from leadline.scanners.conformance_form import state_tensors
from leadline.scanners.transfer import fetch


def deterministic(trial: Trial) -> None:
    """The same call gives the same bits, also from another instance with the same options."""
    built = trial.build()
    first = trial.score(trial.deliver(built))
    expect(same_bits(first, trial.score(trial.deliver(built))), "two identical calls gave different scores")
    twin = Trial(type(trial.scanner)(**trial.scanner.model_dump()), trial.case)
    again = twin.score(twin.deliver(twin.build()))
    expect(same_bits(first, again), "another instance with the same options gave different scores for the same keys")


def untouched(trial: Trial) -> None:
    """`build`, `plan` and `score` leave keys, queries, state, index and reads as they were."""
    watch = _Watch()
    keys, query = trial.case.keys(), trial.query.clone()
    watch.add("the input", lambda: {"keys": keys, "query": query})
    if trial.statistics is not None:
        moments = vars(trial.statistics)
        watch.add("the statistics", lambda: {k: v for k, v in moments.items() if isinstance(v, Tensor)})
    state = trial.state
    watch.compare("calibrate")
    watch.add("the state", lambda: state_tensors(state))
    built = trial.scanner.build(keys, state)
    watch.compare("build")
    watch.add("the index", lambda: built.fields)
    made = trial.scanner.plan(query, state, built)
    watch.compare("plan")
    reads = fetch(built, made).reads
    watch.add("the reads", lambda: reads.fields)
    trial.scanner.score(query, reads, state)
    watch.compare("score")


class _Watch:
    """Copies of tensors by name, compared with what the same place holds later."""

    def __init__(self) -> None:
        self._now: dict[str, Callable[[], Mapping[str, Tensor]]] = {}
        self._before: dict[str, dict[str, Tensor]] = {}

    def add(self, what: str, now: Callable[[], Mapping[str, Tensor]]) -> None:
        self._now[what] = now
        self._before[what] = {name: tensor.clone() for name, tensor in now().items()}

    def compare(self, stage: str) -> None:
        for what, before in self._before.items():
            now = self._now[what]()
            added = sorted(set(now) - set(before))
            expect(not added, f"{stage} put {', '.join(added)} into {what}; only calibrate makes a state")
            changed = sorted(n for n, tensor in before.items() if n not in now or not same_bits(tensor, now[n]))
            expect(not changed, f"{stage} changed {what}: {', '.join(changed)}; work on copies")


def poison_index(trial: Trial) -> None:
    """Overwriting every stored byte outside the plan leaves the scores bit-identical."""
    built = trial.build()
    made = trial.plan(built)
    delivery = fetch(built, made)
    before = trial.score(delivery).clone()
    if trial.scanner.reads_rows:
        return
    overwritten = 0
    for name, field in built.fields.items():
        levels = made.depth.get(name)
        unread = torch.ones(field.shape[:3], dtype=torch.bool)
        if levels is not None:
            unread = torch.arange(field.shape[2]) >= levels.reshape(levels.shape[-2:]).unsqueeze(-1)
        field[unread] = _garbage(field[unread])
        overwritten += int(unread.sum())
        if made.gate is not None and name in made.gate.fields:
            items = delivery.reads.items
            assert items is not None
            closed = ~items.reshape(items.shape[-2:])[:, None, None, :].expand_as(field)
            field[closed] = _garbage(field[closed])
            overwritten += int(closed.any(-1).sum())
    after = trial.score(fetch(built, made))
    expect(
        same_bits(before, after),
        f"scores change when the {overwritten} stored runs outside the plan are overwritten: the scanner uses parts of "
        "its index that it did not plan to read; use only `reads` in score",
    )


def poison_keys(trial: Trial) -> None:
    """Overwriting the keys after `build` leaves the scores bit-identical: the index is a copy of what it needs."""
    if trial.scanner.reads_rows:
        return
    keys = trial.case.keys()
    built = trial.scanner.build(keys, trial.state)
    before = trial.score(trial.deliver(built)).clone()
    keys.copy_(_garbage(keys))
    after = trial.score(trial.deliver(built))
    expect(
        same_bits(before, after),
        "scores change when the keys are overwritten after build: the scanner keeps a reference to the keys; store "
        "copies in the index and read them through the plan",
    )


def plan_blind(trial: Trial) -> None:
    """The plan does not depend on what the index holds: reading it there would not be metered."""
    built = trial.build()
    before = trial.plan(built)
    if trial.scanner.reads_rows:
        built = trial.build(seed=1)
    for field in built.fields.values():
        field.copy_(_garbage(field))
    after = trial.plan(built)
    for name, levels in before.depth.items():
        expect(
            name in after.depth and torch.equal(levels, after.depth[name]),
            f"the plan for {name!r} changes when the index is overwritten: plan reads stored bytes that nobody counts; "
            "plan from the query and the state alone",
        )


def only_reads(trial: Trial) -> None:
    """Scores follow what was delivered, head by head, whatever was built or planned before or since."""
    one, two = (trial.build(seed) for seed in (0, 1))
    plan_one = trial.plan(one)
    first = fetch(one, plan_one)
    score_one = trial.score(first).clone()
    second = fetch(two, trial.plan(two))
    score_two = trial.score(second).clone()
    expect(
        same_bits(trial.score(first), score_one),
        "scores of a delivery changed after another index was built or planned: the scanner keeps something of its own "
        "between calls; keep everything in Index and State",
    )
    if not plan_one.depth or trial.scanner.reads_rows:
        return
    if trial.case.kind in (
        "normal",
        "skewed",
    ):  # elsewhere honest scores can coincide: all keys equal, or rounded to zero
        expect(
            not same_bits(score_one, score_two),
            "two different deliveries got the same scores: score does not use its reads",
        )
    mixed = trial.score(_alternate(first, second, plan_one))
    for head in range(trial.case.heads):
        whole = (score_one, score_two)[head % 2]
        expect(
            same_bits(mixed[:, head], whole[:, head]),
            f"KV head {head} got the same delivery as before and other scores: score uses something besides query, "
            "reads and state",
        )


def _alternate(first: Delivery, second: Delivery, plan: ReadPlan) -> Delivery:
    """Even heads as delivered from one index, odd heads from the other."""
    heads = first.reads.channel.shape[0]
    odd = (torch.arange(heads) % 2 == 1).view(-1, 1, 1, 1)
    fields = {name: torch.where(odd, second.reads.fields[name], first.reads.fields[name]) for name in plan.depth}
    reads: Reads = dataclasses.replace(first.reads, fields=fields)
    if first.reads.items is not None and second.reads.items is not None:
        items = torch.where(odd.flatten().unsqueeze(-1), second.reads.items, first.reads.items)
        reads = dataclasses.replace(reads, items=items)
    return dataclasses.replace(first, reads=reads)


def _garbage(tensor: Tensor) -> Tensor:
    """Other values of the same shape and dtype: NaN where a float can be one, random words elsewhere."""
    if tensor.is_floating_point():
        return torch.full_like(tensor, torch.nan)
    generator = torch.Generator().manual_seed(7)
    limit = torch.iinfo(tensor.dtype)
    return torch.randint(limit.min, limit.max, tensor.shape, dtype=tensor.dtype, generator=generator)
