"""Scores of the tail and rotation of what is new, by the Triton kernels on a GPU and by PyTorch elsewhere."""

from __future__ import annotations

from torch import Tensor

from leadline.kernels.tail import reference


def tail_scores(
    query: Tensor,
    keys: Tensor,
    active: Tensor | None,
    first: Tensor,
    length: Tensor,
    out: Tensor,
    counter: Tensor | None = None,
) -> Tensor:
    """Write the scores of tokens `first` to `length` - 1 into those columns of out `[H, G, capacity]` fp32.

    query: `[H, G, d]` fp32. keys: the tail `[H, t, d]`, slot i is token first + i, of any floating type, contiguous in
    d. active: fp32 `[H, d]`, 1 on the plan's channels (None: q.k). first, length: int32 `[1]`, on the query's device;
    length - first must not exceed t. counter: int64 `[1]`, the bytes of the keys read are added to it.
    """
    if query.is_cuda:
        from leadline.kernels.tail import triton

        return triton.tail_scores(query, keys, active, first, length, out, counter)
    begin, end = int(first), int(length)
    if end - begin > keys.shape[1]:
        raise ValueError(f"tail: tokens {begin} to {end - 1} are more than its {keys.shape[1]} rows")
    out[..., begin:end] = reference.tail_scores(query, keys[:, : end - begin], active)
    if counter is not None:
        counter += keys[:, : end - begin].numel() * keys.element_size()
    return out


def rotate_one(key: Tensor, mean: Tensor, vectors: Tensor, position: Tensor, first: Tensor, out: Tensor) -> Tensor:
    """Write (k - mu) V of the new token's key `[H, d]` into slot position - first of the rotated tail `[H, t, r]` fp32.

    mean: fp32 `[H, d]`. vectors: fp32 `[H, d, r]`, a coordinate a column. position, first: int32 `[1]`, on the key's
    device. On a GPU a slot outside the tail is not written.
    """
    if key.is_cuda:
        from leadline.kernels.tail import triton

        return triton.rotate_one(key, mean, vectors, position, first, out)
    out[:, int(position) - int(first)] = reference.rotate(key.unsqueeze(-2), mean, vectors).squeeze(-2)
    return out


def rotate_query(query: Tensor, vectors: Tensor, out: Tensor | None = None) -> Tensor:
    """q V in fp32, `[H, G, r]`, for queries `[H, G, d]` and vectors `[H, d, r]`."""
    if query.is_cuda:
        from leadline.kernels.tail import triton

        return triton.rotate_query(query, vectors, out)
    rotated = reference.rotate(query, None, vectors)
    return rotated if out is None else out.copy_(rotated)
