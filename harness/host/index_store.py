"""One scanner store of a session, filled block by block behind the prefill and read by every branch.

Its contents are what `scanner.build` makes of the keys (SPEC sections 1 and 2), which for the built-in scanners depends
on nothing outside a block; so complete blocks are built as they appear and put to their place. Rows begin at multiples
of 128 bytes: reads over the link that do not lose a tenth of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from leadline.host.indexes import LayerIndexes
from leadline.host.placement import Where, empty
from leadline.kernels.place import place
from leadline.kernels.planes import BLOCK
from leadline.scanners import plane_store
from leadline.scanners.base import Index, Scanner, State

ROW_BYTES = 128
# Everything that does arithmetic in floating point (rotations, means) sees keys in pieces of one shape, the last one
# padded: other shapes may sum in another order, and a resumed run would build other last bits than one in one go.
PIECE = 8 * BLOCK
_PLANES = ("planes", "scales")


class IndexStore(LayerIndexes):
    """A block-local store with room for `capacity` tokens: per field one tensor `[L, H, c, D, m]`, of which each row of
    m items begins at a multiple of 128 bytes, on the GPU or in pinned host memory.
    """

    def __init__(
        self,
        scanner: Scanner,
        states: Mapping[int, State],
        heads: int,
        head_dim: int,
        capacity: int,
        *,
        where: Where,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`dtype` is that of the keys. MachineError where the memory is not there."""
        super().__init__(scanner, states, device)
        self.capacity_blocks = capacity // BLOCK
        block = torch.randn(heads, BLOCK, head_dim, generator=torch.Generator().manual_seed(0)).to(device, dtype)
        self._forms = {layer: scanner.build(block, state) for layer, state in states.items()}
        self._place_of = {layer: i for i, layer in enumerate(states)}
        self._done = dict.fromkeys(states, 0)
        self._invalid = torch.zeros(1, dtype=torch.int32, device=device)
        form = next(iter(self._forms.values()))
        shapes = {name: tensor.shape for name, tensor in form.fields.items()}
        if any({n: t.shape for n, t in other.fields.items()} != shapes for other in self._forms.values()):
            raise ValueError(f"the store of {scanner.label} has not the same shape in every layer")
        self.items_per_block = {name: shape[-1] for name, shape in shapes.items()}
        self.fields: dict[str, Tensor] = {}
        for name, tensor in form.fields.items():
            items, aligned = self.capacity_blocks * tensor.shape[-1], ROW_BYTES // tensor.element_size()
            shape = (len(states), *tensor.shape[:-1], -(-items // aligned) * aligned)
            whole = empty(shape, tensor.dtype, where, device, f"the index of {scanner.store.partition(':')[0]}")
            self.fields[name] = whole[..., :items]
        self._packs = device.type == "cuda" and all(_is_pack(form, block) for form in self._forms.values())

    @property
    def blocks(self) -> int:
        return min(self._done.values(), default=0)

    @property
    def nbytes(self) -> int:
        return self.blocks * sum(
            field[..., : self.items_per_block[name]].numel() * field.element_size()
            for name, field in self.fields.items()
        )

    @property
    def allocated_bytes(self) -> int:
        return sum(field[..., :1].numel() * field.stride(-2) * field.element_size() for field in self.fields.values())

    def extend(self, layer: int, keys: Tensor, first_block: int) -> None:
        """Build the blocks from `first_block` on from their keys `[H, t, d]`, t a multiple of 64, and put them there.

        ValueError where that would leave a hole, or goes past the capacity.
        """
        blocks, rest = divmod(keys.shape[1], BLOCK)
        end = first_block + blocks
        if rest or not 0 <= first_block <= self._done[layer] or end > self.capacity_blocks:
            raise ValueError(
                f"cannot put {keys.shape[1]} tokens at block {first_block} of layer {layer}: the store holds "
                f"{self._done[layer]} of {self.capacity_blocks} blocks, and takes complete ones of {BLOCK} tokens"
            )
        basis = self._forms[layer].basis
        if self._packs and basis is None:
            self._pack(layer, keys, first_block)  # exact in integers, whatever the shape
        else:
            for start in range(0, keys.shape[1], PIECE):
                piece = keys[:, start : start + PIECE]
                padded = torch.nn.functional.pad(piece, (0, 0, 0, PIECE - piece.shape[1]))
                at = first_block + start // BLOCK
                if self._packs and basis is not None:
                    self._pack(layer, basis.rotate_keys(padded)[:, : piece.shape[1]], at)
                else:
                    self._put(layer, padded, piece.shape[1] // BLOCK, at)
        self._done[layer] = end

    def index(self, layer: int, blocks: int | None = None) -> Index:
        blocks = self._done[layer] if blocks is None else blocks
        if not 0 <= blocks <= self._done[layer]:
            raise ValueError(f"layer {layer} of the store holds {self._done[layer]} blocks, not {blocks}")
        form, at = self._forms[layer], self._place_of[layer]
        fields = {name: field[at][..., : blocks * self.items_per_block[name]] for name, field in self.fields.items()}
        return Index(fields, form.tokens_per_item, blocks * BLOCK, form.block, form.basis)

    def room(self) -> dict[int, Index]:
        found = {}
        for layer, form in self._forms.items():
            fields = {name: field[self._place_of[layer]] for name, field in self.fields.items()}
            found[layer] = Index(fields, form.tokens_per_item, self.capacity_blocks * BLOCK, form.block, form.basis)
        return found

    def truncate(self, blocks: int) -> None:
        self._done = {layer: min(done, blocks) for layer, done in self._done.items()}

    def verify(self) -> None:
        """ValueError where a key was above fp16's range or not finite. Waits for the GPU."""
        if int(self._invalid):
            raise ValueError(
                f"a key is above 65504 or not finite, which the scales of the store of {self.scanner.label} cannot hold"
            )

    def _part(self, layer: int, name: str, first_block: int, blocks: int) -> Tensor:
        each = self.items_per_block[name]
        return self.fields[name][self._place_of[layer]][..., first_block * each : (first_block + blocks) * each]

    def _put(self, layer: int, keys: Tensor, blocks: int, first_block: int) -> None:
        """Place the first `blocks` blocks of what the scanner builds from keys `[H, PIECE, d]`."""
        built = self.scanner.build(keys, self.states[layer])
        for name, field in built.fields.items():
            place(field[..., : blocks * self.items_per_block[name]], self._part(layer, name, first_block, blocks))

    def _pack(self, layer: int, values: Tensor, first_block: int) -> None:
        """Pack values `[H, t, c]` on the GPU straight to where their planes and scales belong."""
        from leadline.kernels.planes import triton

        values = values if values.stride(-1) == 1 else values.contiguous()
        planes, scales = (self._part(layer, name, first_block, values.shape[1] // BLOCK) for name in _PLANES)
        triton.pack(values, planes, scales.squeeze(-2), self._invalid)


def _is_pack(form: Index, block: Tensor) -> bool:
    """Whether this index of one block's keys is the plain pack of them, or of their coordinates, and nothing else."""
    if set(form.fields) != set(_PLANES):
        return False
    plain = plane_store.build(block, form.basis).fields
    return all(torch.equal(field, form.fields[name]) for name, field in plain.items())
