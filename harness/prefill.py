"""Dense prefill in chunks whose ends depend on the run's specification alone, never on what a resumed run still misses.

Chunk ends change the last bits of the rows (other matrix shapes, other summation order), so an interrupted and an
uninterrupted run must cut alike: at absolute multiples of the chunk size and at the branch points of the full
specification (SPEC section 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from leadline.attention import forward
from leadline.model import LoadedModel
from leadline.rows import Rows


def chunk_ends(start: int, stop: int, chunk: int, stops: Iterable[int]) -> list[int]:
    """Ends of the chunks that lead from position `start` to `stop`, ascending, the last one `stop`.

    Ends lie at multiples of `chunk` counted from position 0 and at the positions in `stops`; those outside
    (start, stop) do not matter. `stop` itself ends a chunk whether or not it is one of them, so name every branch point
    of the run in `stops` on every call. ValueError when start > stop or chunk < 1.
    """
    if chunk < 1 or not 0 <= start <= stop:
        raise ValueError(f"cannot cut {start}..{stop} into chunks of {chunk}")
    if start == stop:
        return []
    multiples = range((start // chunk + 1) * chunk, stop, chunk)
    return sorted({*multiples, *(position for position in stops if start < position < stop), stop})


def extend(
    model: LoadedModel,
    rows: Rows,
    ids: Tensor,
    until: int,
    *,
    chunk: int,
    stops: Iterable[int],
    on_chunk: Callable[[int], None] | None = None,
) -> None:
    """Append the rows of `ids[rows.length:until]` (ids `[N]`, the whole prompt) by dense attention.

    `on_chunk(done)` is called after each chunk with the number of tokens now in the rows. Logits are computed for one
    position per chunk only, so memory does not grow with the vocabulary.
    """
    if until > ids.shape[0]:
        raise ValueError(f"cannot prefill up to {until}: the prompt has {ids.shape[0]} tokens")
    for end in chunk_ends(rows.length, until, chunk, stops):
        forward(model, ids[rows.length : end], rows)
        if on_chunk is not None:
            on_chunk(end)
