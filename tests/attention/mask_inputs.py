"""Random inputs and masks, and SDPA's result for them."""

import torch

B, H, G, T, D = 2, 4, 2, 6, 8
BACKENDS = ["reference", "blockwise", "sdpa", "auto"]


def inputs(batch=B, heads=H, groups=G, rows=T, keys=T, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (heads, rows, D), (groups, keys, D), (groups, keys, D)
    return [torch.randn(batch, *size, generator=generator, dtype=torch.float64) for size in sizes]


def random_mask(shape, kind, seed=1):
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(shape, generator=generator) < 0.6
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
    return {"bool": allowed, "float": numbers, "float with -inf": numbers.masked_fill(~allowed, -torch.inf)}[kind]


def by_sdpa(q, k, v, mask):
    """SDPA itself; where a row sees nothing its kernels differ, and ours gives zeros."""
    hidden = ~mask if mask.dtype == torch.bool else torch.isneginf(mask)
    hidden = hidden.broadcast_to(q.shape[0], q.shape[1], q.shape[2], k.shape[2]).all(-1, keepdim=True)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.masked_fill(hidden, 0.0)
