"""Mechanisms, masks and shapes for the tests of the fused kernels under Triton's interpreter."""

import torch

from whence import Alibi, Epar, Kerple, PowerPrior, Rotary, Sink, StableMask, T5Bias

MECHANISMS = {
    "none": lambda h: None,
    "Epar": lambda h: Epar(h, context=40, learnable=True),
    "Epar, one for all heads": lambda h: Epar(None, form="basic", context=40, learnable=True),
    "Alibi": lambda h: Alibi(h, form="symmetric", learnable=True),
    "Alibi, fixed": lambda h: Alibi(h, form="symmetric"),
    "T5Bias": lambda h: T5Bias(h, std=1.0),
    "T5Bias, both sides": lambda h: T5Bias(h, form="bidirectional", std=1.0),
    "PowerPrior": lambda h: PowerPrior(h, alpha=0.1, beta=0.8),
    "Kerple": lambda h: Kerple(h, form="log"),
    "Kerple, power": lambda h: Kerple(h, form="power"),
    "Epar + T5Bias": lambda h: Epar(h, context=40, learnable=True) + T5Bias(h, form="bidirectional", std=1.0),
    "Epar + PowerPrior": lambda h: Epar(h, context=40, learnable=True) + PowerPrior(h, alpha=0.1, beta=0.8),
    "Epar + Epar": lambda h: (
        Epar(h, context=40, learnable=True) + Epar(h, context=9, learnable=True)
    ),  # two scale: dense
    "Epar + fixed Alibi": lambda h: Epar(h, context=40, learnable=True) + Alibi(h, form="symmetric"),
    "Kerple + Alibi": lambda h: (
        Kerple(h) + Alibi(h, form="symmetric", learnable=True)
    ),  # three parameter gradients of a bias
    "Alibi + Sink": lambda h: Alibi(h, form="symmetric", learnable=True) + Sink(h),
    "Sink": lambda h: Sink(h),
    "StableMask": lambda h: StableMask(h, context=64, learnable=True),
    "Rotary + Epar + Sink": lambda h: Rotary() + Epar(h, context=40, learnable=True) + Sink(h),
}


MASK_WORDS = {
    "causal", "both sides", "window", "scaled", "negative scale", "lengths", "key_mask", "holes", "segment_ids"
}  # fmt: skip


def masks(name, batch, queries, keys):
    options = {"causal": "both sides" not in name}
    if queries != keys:
        options |= {"q_positions": torch.arange(keys - queries, keys), "k_positions": torch.arange(keys)}
    unknown = set(name.split(", ")) - MASK_WORDS
    assert not unknown, f"unknown mask {unknown}"  # a word that changes nothing would weaken the test silently
    if "window" in name:
        options["window"] = 13
    if "scaled" in name:
        options |= {"temperature": 1.7, "scale": 0.4}
    if "negative scale" in name:
        options["scale"] = -0.3
    if "lengths" in name:
        options["lengths"] = (keys - 41 * torch.arange(batch)).clamp(min=0)
    if "key_mask" in name:
        options["key_mask"] = torch.arange(keys) >= torch.arange(batch)[:, None] * 37
    if "holes" in name:
        options["key_mask"] = torch.rand(batch, keys, generator=torch.Generator().manual_seed(3)) > 0.4
        options["q_positions"] = torch.arange(keys)  # counted, padding would take no position, and tables need a run
    if "segment_ids" in name:
        runs = (torch.arange(keys) // 29).expand(batch, -1)
        options["segment_ids"] = runs if queries == keys else (runs[:, -queries:], runs)
    return options


# batch, heads, key heads, queries, keys, key width, value width; tiles of 40 and 48 have two parts
ONE, SHORT, BLOCK, OVER = (
    (1, 2, 2, 1, 1, 16, 16),
    (2, 2, 1, 17, 17, 20, 40),
    (1, 2, 2, 63, 63, 48, 16),
    (1, 2, 1, 65, 65, 16, 20),
)
LONG, PAIR, EVEN, ODD = (
    (1, 2, 1, 111, 111, 16, 16),
    (2, 2, 1, 111, 111, 16, 16),
    (1, 2, 2, 128, 128, 16, 16),
    (1, 3, 1, 70, 70, 7, 5),
)
LATER, EARLIER = (1, 2, 1, 40, 111, 16, 16), (1, 2, 2, 75, 130, 20, 16)
