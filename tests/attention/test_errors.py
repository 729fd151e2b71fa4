"""Every refusal of the waist, with its whole text: what was asked, what came, the rule and the mend, in one sentence.

Texts are pinned whole because they are the only documentation a user reads at the moment something is wrong.
"""

import pytest
import torch

import whence
from whence import Alibi, Attention, Cope, Epar, KVCache, Learned, Position, Rotary, Shaw, Sink, Sinusoidal, StableMask
from whence.position import DynamicNtk, Sum

B, H, G, T, D = 2, 4, 2, 3, 8


def tensor(*shape, dtype=torch.float32, device=None):
    return torch.zeros(shape, dtype=dtype, device=device)


def call(q=None, k=None, v=None, run=whence.attend, **arguments):
    """A call that is right in everything but what is given."""
    q = tensor(B, H, T, D) if q is None else q
    k = tensor(B, G, T, D) if k is None else k
    v = tensor(B, G, T, D) if v is None else v
    return run(q, k, v, **arguments)


def user(*names, answer, **about):
    """A user's mechanism whose hooks of these names all give one answer."""
    kind = type("Mine", (Position,), {name: lambda self, *_: answer for name in names})
    return kind(**about)


def layer(position=None, **about):
    return Attention(16, 2, position, **about)


def x(batch=1, length=3, width=16, **about):
    return tensor(batch, length, width, **about)


def holding(tokens=3, batch=B, **about):
    """A cache that has seen some tokens of two key heads of width 8."""
    cache = KVCache(**about)
    q, k = tensor(batch, H, tokens, D), tensor(batch, G, tokens, D)
    whence.attend(q, k, k, causal=True, window=about.get("window"), cache=cache)
    return cache


def step(cache, tokens=1, batch=B, causal=True, **arguments):
    """The next tokens against a cache, right in everything but what is given."""
    q, k = tensor(batch, H, tokens, D), tensor(batch, G, tokens, D)
    given = {"q": q, "k": k, "v": k, "causal": causal} | arguments
    return whence.attend(given.pop("q"), given.pop("k"), given.pop("v"), cache=cache, **given)


INPUTS = [
    (
        "q that is no tensor",
        lambda: call(q=[[1.0]]),
        "attend(q) got list, but q is a torch tensor; convert it with torch.as_tensor.",
    ),
    (
        "v that is no tensor",
        lambda: call(v="v"),
        "attend(v) got str, but v is a torch tensor; convert it with torch.as_tensor.",
    ),
    (
        "q of three axes",
        lambda: call(q=tensor(B, T, D)),
        "attend(q) got shape [2, 3, 8], but q has four axes [batch, heads, length, width]; add the missing axis with unsqueeze, or split the heads with unflatten and transpose.",
    ),
    (
        "k of five axes",
        lambda: call(k=tensor(1, B, G, T, D)),
        "attend(k) got shape [1, 2, 2, 3, 8], but k has four axes [batch, heads, length, width]; add the missing axis with unsqueeze, or split the heads with unflatten and transpose.",
    ),
    (
        "v of two axes",
        lambda: call(v=tensor(T, D)),
        "attend(v) got shape [3, 8], but v has four axes [batch, heads, length, width]; add the missing axis with unsqueeze, or split the heads with unflatten and transpose.",
    ),
    (
        "q of whole numbers",
        lambda: call(q=tensor(B, H, T, D, dtype=torch.long)),
        "attend(q) got dtype torch.int64, but attention takes float64, float32, float16 or bfloat16; convert with q.float().",
    ),
    (
        "k of complex numbers",
        lambda: call(k=tensor(B, G, T, D, dtype=torch.complex64)),
        "attend(k) got dtype torch.complex64, but attention takes float64, float32, float16 or bfloat16; convert with k.float().",
    ),
    (
        "no batch",
        lambda: call(q=tensor(0, H, T, D)),
        "attend(q) got shape [0, 4, 3, 8], but no axis may be empty; leave the call out when there is nothing to attend to.",
    ),
    (
        "no keys",
        lambda: call(k=tensor(B, G, 0, D)),
        "attend(k) got shape [2, 2, 0, 8], but no axis may be empty; leave the call out when there is nothing to attend to.",
    ),
    (
        "k of another dtype",
        lambda: call(k=tensor(B, G, T, D, dtype=torch.float64)),
        "attend(k) got dtype torch.float64 with q of torch.float32, but q, k and v share one dtype; convert with k.to(q.dtype).",
    ),
    (
        "v of another dtype",
        lambda: call(v=tensor(B, G, T, D, dtype=torch.bfloat16)),
        "attend(v) got dtype torch.bfloat16 with q of torch.float32, but q, k and v share one dtype; convert with v.to(q.dtype).",
    ),
    (
        "k on another device",
        lambda: call(k=tensor(B, G, T, D, device="meta")),
        "attend(k) got device meta with q on cpu, but q, k and v share one device; move with k.to(q.device).",
    ),
    (
        "v on another device",
        lambda: call(v=tensor(B, G, T, D, device="meta")),
        "attend(v) got device meta with q on cpu, but q, k and v share one device; move with v.to(q.device).",
    ),
    (
        "a batch of 1 is not stretched to 2",
        lambda: call(k=tensor(1, G, T, D), v=tensor(1, G, T, D)),
        "attend(k) got batch 1 with 2 in q, but batches are equal and never broadcast; use k.expand.",
    ),
    (
        "v with a batch of its own",
        lambda: call(v=tensor(1, G, T, D)),
        "attend(v) got batch 1 with 2 in q, but batches are equal and never broadcast; use v.expand.",
    ),
    (
        "keys of another width",
        lambda: call(k=tensor(B, G, T, D + 1)),
        "attend(k) got width 9 with 8 in q, but queries and keys have one width; project both to the same width.",
    ),
    (
        "one head of values is not shared",
        lambda: call(v=tensor(B, 1, T, D)),
        "attend(v) got 1 head with 2 in k, but keys and values have the same heads; project both to the same heads.",
    ),
    (
        "a value too many",
        lambda: call(v=tensor(B, G, T + 1, D)),
        "attend(v) got length 4 with 3 in k, but each key has one value; cut both from the same tokens.",
    ),
    (
        "heads that do not divide",
        lambda: call(k=tensor(B, 3, T, D), v=tensor(B, 3, T, D)),
        "attend(q) got 4 heads for 3 key heads, but the query heads are a multiple of the key heads; choose numbers that divide.",
    ),
    (
        "more key heads than query heads",
        lambda: call(q=tensor(B, 1, T, D)),
        "attend(q) got 1 head for 2 key heads, but the query heads are a multiple of the key heads; choose numbers that divide.",
    ),
    (
        "NaN",
        lambda: call(q=torch.full((B, H, T, D), torch.nan), finite=True),
        "attend(q, check_finite=True) got 192 of 192 numbers that are NaN or infinite, but every input must be finite when asked to be; look for the operation that made them.",
    ),
    (
        "infinity in v",
        lambda: call(v=torch.full((B, G, T, D), torch.inf), finite=True),
        "attend(v, check_finite=True) got 96 of 96 numbers that are NaN or infinite, but every input must be finite when asked to be; look for the operation that made them.",
    ),
    (
        "finite asked of what is no tensor",
        lambda: call(q=1, finite=True),
        "attend(q) got int, but q is a torch tensor; convert it with torch.as_tensor.",
    ),
]

PLACES = [
    (
        "queries and keys of two lengths and no positions",
        lambda: call(q=tensor(B, H, 1, D), causal=True),
        "attend(q, k) got 1 query for 3 keys and no positions, but where each query stands must be said when the lengths differ; if the queries are the last tokens, pass q_positions=torch.arange(2, 3) and k_positions=torch.arange(3).",
    ),
    (
        "two lengths and a mechanism, without positions",
        lambda: call(q=tensor(B, H, 1, D), position=Epar(H)),
        "attend(q, k) got 1 query for 3 keys and no positions, but where each query stands must be said when the lengths differ; if the queries are the last tokens, pass q_positions=torch.arange(2, 3) and k_positions=torch.arange(3).",
    ),
    (
        "two lengths and a window, without positions",
        lambda: call(q=tensor(B, H, 1, D), window=2),
        "attend(q, k) got 1 query for 3 keys and no positions, but where each query stands must be said when the lengths differ; if the queries are the last tokens, pass q_positions=torch.arange(2, 3) and k_positions=torch.arange(3).",
    ),
    (
        "more queries than keys and no positions",
        lambda: call(q=tensor(B, H, T + 1, D), causal=True),
        "attend(q, k) got 4 queries for 3 keys and no positions, but where each query stands must be said when the lengths differ; pass q_positions and k_positions.",
    ),
    (
        "one of two positions",
        lambda: call(q=tensor(B, H, 1, D), q_positions=torch.tensor([2])),
        "attend(q_positions=..., k_positions=...) got only one of them, but the other cannot be guessed when lengths differ; give both.",
    ),
    (
        "positions as a list",
        lambda: call(q_positions=[0, 1, 2]),
        "attend(q_positions=...) got list, but positions are a tensor of numbers; use torch.arange.",
    ),
    (
        "positions of bool",
        lambda: call(q_positions=torch.ones(T, dtype=torch.bool)),
        "attend(q_positions=...) got torch.bool, but positions are a tensor of numbers; use torch.arange.",
    ),
    (
        "a position too few",
        lambda: call(q_positions=torch.arange(T - 1)),
        "attend(q_positions=...) got shape [2], but positions are [3] or [2, 3], one for each token; give one position for each token.",
    ),
    (
        "a batch of 1 of positions is not stretched",
        lambda: call(k_positions=torch.arange(T)[None]),
        "attend(k_positions=...) got shape [1, 3], but positions are [3] or [2, 3], one for each token; give one position for each token.",
    ),
    (
        "positions on another device",
        lambda: call(q_positions=torch.arange(T, device="meta")),
        "attend(q_positions=...) got device meta with q on cpu, but all tensors share one device; move it with .to(q.device).",
    ),
    (
        "a negative position",
        lambda: call(q_positions=torch.tensor([-1, 0, 1])),
        "attend(q_positions=...) got a position of -1, but positions count from 0; mark left padding with padding=..., which numbers the tokens itself.",
    ),
    (
        "a position that is NaN",
        lambda: call(k_positions=torch.tensor([0.0, torch.nan, 2.0])),
        "attend(k_positions=...) got a position of nan, but positions count from 0; mark left padding with padding=..., which numbers the tokens itself.",
    ),
    (
        "a mask of whole numbers",
        lambda: call(key_mask=torch.ones(B, T, dtype=torch.long)),
        "attend(padding=...) got torch.int64 [2, 3], but padding is a bool tensor [2, 3] that is True where a token is real; convert an integer mask with mask.bool().",
    ),
    (
        "a mask of another length",
        lambda: call(key_mask=torch.ones(B, T + 1, dtype=torch.bool)),
        "attend(padding=...) got torch.bool [2, 4], but padding is a bool tensor [2, 3] that is True where a token is real; give one for each token of this call.",
    ),
    (
        "a mask without a batch",
        lambda: call(key_mask=torch.ones(T, dtype=torch.bool)),
        "attend(padding=...) got torch.bool [3], but padding is a bool tensor [2, 3] that is True where a token is real; give one for each token of this call.",
    ),
    (
        "a mask that is a list",
        lambda: call(key_mask=[True] * T),
        "attend(padding=...) got list, but padding is a bool tensor [2, 3] that is True where a token is real; give one for each token of this call.",
    ),
    (
        "a mask on another device",
        lambda: call(key_mask=torch.ones(B, T, dtype=torch.bool, device="meta")),
        "attend(padding=...) got device meta with q on cpu, but all tensors share one device; move it with .to(q.device).",
    ),
    (
        "lengths of floats",
        lambda: call(lengths=torch.ones(B)),
        "attend(lengths=...) got torch.float32 [2], but lengths is an integer tensor [2]; give one length for each sequence of the batch.",
    ),
    (
        "lengths of bool",
        lambda: call(lengths=torch.ones(B, dtype=torch.bool)),
        "attend(lengths=...) got torch.bool [2], but lengths is an integer tensor [2]; give one length for each sequence of the batch.",
    ),
    (
        "lengths for another batch",
        lambda: call(lengths=torch.tensor([3])),
        "attend(lengths=...) got torch.int64 [1], but lengths is an integer tensor [2]; give one length for each sequence of the batch.",
    ),
    (
        "lengths as a list",
        lambda: call(lengths=[3, 3]),
        "attend(lengths=...) got list, but lengths is an integer tensor [2]; give one length for each sequence of the batch.",
    ),
    (
        "a length beyond the keys",
        lambda: call(lengths=torch.tensor([3, 4])),
        "attend(lengths=...) got [3, 4], but a length lies between 0 and the 3 keys there are; count the real tokens of each sequence.",
    ),
    (
        "a negative length",
        lambda: call(lengths=torch.tensor([-1, 3])),
        "attend(lengths=...) got [-1, 3], but a length lies between 0 and the 3 keys there are; count the real tokens of each sequence.",
    ),
    (
        "lengths on another device",
        lambda: call(lengths=torch.ones(B, dtype=torch.long, device="meta")),
        "attend(lengths=...) got device meta with q on cpu, but all tensors share one device; move it with .to(q.device).",
    ),
    (
        "lengths and padding",
        lambda: call(lengths=torch.tensor([3, 3]), key_mask=torch.ones(B, T, dtype=torch.bool)),
        "attend(lengths=..., padding=...) got both, but one of them says which tokens are real; drop one of them.",
    ),
    (
        "documents of floats",
        lambda: call(segment_ids=torch.zeros(T)),
        "attend(documents=...) got torch.float32 [3], but documents is an integer tensor [3] or [2, 3] with one number for each token; number the documents of a packed row 0, 0, 1, 1, 1 and so on.",
    ),
    (
        "documents of bool",
        lambda: call(segment_ids=torch.zeros(T, dtype=torch.bool)),
        "attend(documents=...) got torch.bool [3], but documents is an integer tensor [3] or [2, 3] with one number for each token; number the documents of a packed row 0, 0, 1, 1, 1 and so on.",
    ),
    (
        "documents as a list",
        lambda: call(segment_ids=[0, 0, 1]),
        "attend(documents=...) got list, but documents is an integer tensor [3] or [2, 3] with one number for each token; number the documents of a packed row 0, 0, 1, 1, 1 and so on.",
    ),
    (
        "a document number too many",
        lambda: call(segment_ids=torch.tensor([0, 0, 1, 1])),
        "attend(documents=...) got torch.int64 [4], but documents is an integer tensor [3] or [2, 3] with one number for each token; number the documents of a packed row 0, 0, 1, 1, 1 and so on.",
    ),
    (
        "documents on another device",
        lambda: call(segment_ids=torch.zeros(T, dtype=torch.long, device="meta")),
        "attend(documents=...) got device meta with q on cpu, but all tensors share one device; move it with .to(q.device).",
    ),
    (
        "one tensor of documents for two lengths",
        lambda: call(q=tensor(B, H, 1, D), segment_ids=torch.zeros(T, dtype=torch.long)),
        "attend(documents=...) got one tensor for 1 query and 3 keys, but queries and keys of different lengths have document numbers of their own; pass a pair, for the queries and for the keys.",
    ),
    (
        "three tensors of documents",
        lambda: call(segment_ids=(torch.zeros(T, dtype=torch.long),) * 3),
        "attend(documents=...) got 3 tensors, but documents is one tensor or a pair, for the queries and for the keys; pass one or two.",
    ),
    (
        "a document that is taken up again",
        lambda: call(segment_ids=torch.tensor([0, 1, 0])),
        "attend(documents=...) got a document in several pieces, but positions are counted along tokens that stand side by side; number the pieces differently, or give positions.",
    ),
]

SETTINGS = [
    (
        "an unknown backend",
        lambda: call(backend="flash"),
        "attend(backend=...) got 'flash', but backend is 'auto', 'reference', 'blockwise', 'triton' or 'sdpa'; choose one of them.",
    ),
    (
        "window of zero",
        lambda: call(window=0),
        "attend(window=...) got 0, but window is a whole number of at least 1; leave it out to see every key.",
    ),
    (
        "window of a fraction",
        lambda: call(window=2.5),
        "attend(window=...) got 2.5, but window is a whole number of at least 1; leave it out to see every key.",
    ),
    (
        "window of True",
        lambda: call(window=True),
        "attend(window=...) got True, but window is a whole number of at least 1; leave it out to see every key.",
    ),
    (
        "scale of infinity",
        lambda: call(scale=torch.inf),
        "attend(scale=...) got inf, but scale is a finite number; leave it out for width ** -0.5.",
    ),
    (
        "scale as a text",
        lambda: call(scale="auto"),
        "attend(scale=...) got 'auto', but scale is a finite number; leave it out for width ** -0.5.",
    ),
    (
        "temperature of zero",
        lambda: call(temperature=0),
        "attend(temperature=...) got 0, but temperature is a finite number above 0; leave it out for 1.",
    ),
    (
        "temperature of infinity",
        lambda: call(temperature=torch.inf),
        "attend(temperature=...) got inf, but temperature is a finite number above 0; leave it out for 1.",
    ),
    (
        "temperature of True",
        lambda: call(temperature=True),
        "attend(temperature=...) got True, but temperature is a finite number above 0; leave it out for 1.",
    ),
    (
        "dropout of one",
        lambda: call(dropout=1.0),
        "attend(dropout=...) got 1.0, but dropout is a finite number of at least 0 and below 1; leave it out for no dropout.",
    ),
    (
        "dropout below zero",
        lambda: call(dropout=-0.1),
        "attend(dropout=...) got -0.1, but dropout is a finite number of at least 0 and below 1; leave it out for no dropout.",
    ),
    (
        "a cache that is none",
        lambda: call(cache={}, causal=True),
        "attend(cache=...) got dict, but cache is a whence.KVCache; build one for each layer.",
    ),
    (
        "sdpa with a factor",
        lambda: call(position=Epar(H), backend="sdpa"),
        "attend(backend='sdpa') got a call it cannot run: it has no factor effect, but a named backend runs or refuses; use backend='blockwise'.",
    ),
    (
        "sdpa with content, a sink and values",
        lambda: call(position=Shaw(D) + Sink(H), backend="sdpa"),
        "attend(backend='sdpa') got a call it cannot run: it has no content and no sink and no values effect, but a named backend runs or refuses; use backend='blockwise'.",
    ),
    (
        "sdpa with weights",
        lambda: call(backend="sdpa", return_weights=True),
        "attend(backend='sdpa') got a call it cannot run: it never forms the weights that return_weights asks for, but a named backend runs or refuses; use backend='reference'.",
    ),
    (
        "blockwise with weights",
        lambda: call(position=Epar(H), backend="blockwise", return_weights=True),
        "attend(backend='blockwise') got a call it cannot run: it never forms the weights that return_weights asks for, but a named backend runs or refuses; use backend='reference'.",
    ),
    (
        "explain refuses as attend does",
        lambda: call(run=whence.explain, position=Epar(H), backend="sdpa"),
        "attend(backend='sdpa') got a call it cannot run: it has no factor effect, but a named backend runs or refuses; use backend='blockwise'.",
    ),
]

MECHANISMS = [
    (
        "a position that is none",
        lambda: call(position="alibi"),
        "attend(position=...) got str, but position is a whence.Position; subclass whence.Position.",
    ),
    (
        "a class for an object",
        lambda: call(position=Alibi),
        "attend(position=...) got type, but position is a whence.Position; subclass whence.Position.",
    ),
    (
        "heads of another number",
        lambda: call(position=Epar(2)),
        "attend(position=Epar) got 2 heads with 4 in q, but a mechanism has the heads of the queries; build it with heads=4.",
    ),
    (
        "key heads for query heads in a sum",
        lambda: call(position=Rotary() + Sink(G)),
        "attend(position=Sink) got 2 heads with 4 in q, but a mechanism has the heads of the queries; build it with heads=4.",
    ),
    (
        "another head width",
        lambda: call(position=Shaw(16)),
        "attend(position=Shaw) got head_dim 16 with 8 in q, but a mechanism has the width of the queries; build it with head_dim=8.",
    ),
    (
        "causal ALiBi looking ahead",
        lambda: call(position=Alibi(H)),
        "attend(position=Alibi) got causal=False, which brings negative distances, but Alibi is defined for keys at or before the query; pass causal=True, or use its symmetric form if it has one.",
    ),
    (
        "a sum with a causal part looking ahead",
        lambda: call(position=Rotary() + StableMask(H, context=8)),
        "attend(position=StableMask) got causal=False, which brings negative distances, but StableMask is defined for keys at or before the query; pass causal=True, or use its symmetric form if it has one.",
    ),
    (
        "Cope looking ahead",
        lambda: call(position=Cope(D)),
        "attend(position=Cope) got causal=False, which brings negative distances, but Cope is defined for keys at or before the query; pass causal=True, or use its symmetric form if it has one.",
    ),
    (
        "an embedding in attend",
        lambda: call(position=Sinusoidal(32)),
        "attend(position=Sinusoidal) got a mechanism that acts on embeddings, but attend sees queries and keys only; call position.embed(x, positions) on the input, or let whence.Attention do it.",
    ),
    (
        "an embedding in a sum in attend",
        lambda: call(position=Alibi(H) + Learned(32, 8), causal=True),
        "attend(position=Learned) got a mechanism that acts on embeddings, but attend sees queries and keys only; call position.embed(x, positions) on the input, or let whence.Attention do it.",
    ),
    (
        "a length of the sequence with a cache",
        lambda: call(position=Epar(H, length="sequence"), causal=True, cache=KVCache()),
        "attend(position=Epar, cache=...) got length='sequence', but a length that grows with each token changes every earlier weight, so a cached model is not the trained one; use length='context', or length='query' where there is one.",
    ),
    (
        "dynamic rotary by sequence with a cache",
        lambda: call(position=Rotary(scaling=DynamicNtk(2.0, 8), length="sequence"), causal=True, cache=KVCache()),
        "attend(position=Rotary, cache=...) got length='sequence', but a length that grows with each token changes every earlier weight, so a cached model is not the trained one; use length='context', or length='query' where there is one.",
    ),
    (
        "parameters on another device",
        lambda: call(position=Epar(H, learnable=True).to("meta")),
        "attend(position=Epar) got parameters on meta with q on cpu, but all tensors share one device; move it with position.to(q.device).",
    ),
    (
        "buffers on another device",
        lambda: call(position=Alibi(H).to("meta"), causal=True),
        "attend(position=Alibi) got parameters on meta with q on cpu, but all tensors share one device; move it with position.to(q.device).",
    ),
    (
        "negative heads",
        lambda: Epar(-1),
        "Epar(heads=...) got -1, but heads is a whole number of at least 1; give the number of query heads.",
    ),
    (
        "heads of a fraction",
        lambda: Epar(2.0),
        "Epar(heads=...) got 2.0, but heads is a whole number of at least 1; give the number of query heads.",
    ),
    (
        "an unknown length",
        lambda: Epar(length="max"),
        "Epar(length=...) got 'max', but length is 'context', 'query' or 'sequence'; choose one of them.",
    ),
    (
        "a fixed length without a context",
        lambda: Epar(length="context", context=None),
        "Epar(context=...) got None, but context is a whole number of at least 1; pass context=4096, or choose length='query'.",
    ),
    (
        "a context of zero",
        lambda: Epar(context=0),
        "Epar(context=...) got 0, but context is a whole number of at least 1; pass context=4096, or choose length='query'.",
    ),
    (
        "a mechanism that needs heads without them",
        lambda: Alibi(None),
        "Alibi(heads=...) got None, but heads is a whole number of at least 1; give the number of query heads.",
    ),
]

ANSWERS = [
    (
        "a factor of n + 1",
        lambda: call(position=user("score_scale", answer=torch.ones(6))),
        "Mine.factor got an answer of shape [6], but for 5 distances and 4 query heads it is [5] or [4, 5]; return one number for each distance, or a row of them for each head.",
    ),
    (
        "a bias for two of four heads",
        lambda: call(position=user("bias", answer=torch.ones(2, 9)), backend="reference"),
        "Mine.bias got an answer of shape [2, 9], but for 9 distances and 4 query heads it is [9] or [4, 9]; build it with heads=4, or give a parameter the shape [heads, 1].",
    ),
    (
        "a bias of one head is not stretched",
        lambda: call(position=user("bias", answer=torch.ones(1, 9)), backend="reference"),
        "Mine.bias got an answer of shape [1, 9], but for 9 distances and 4 query heads it is [9] or [4, 9]; build it with heads=4, or give a parameter the shape [heads, 1].",
    ),
    (
        "a bias by distance table of another length",
        lambda: call(position=user("bias", answer=torch.ones(9)), backend="blockwise"),
        "Mine.bias got an answer of shape [9], but for 5 distances and 4 query heads it is [5] or [4, 5]; return one number for each distance, or a row of them for each head.",
    ),
    (
        "a single number for a factor",
        lambda: call(position=user("score_scale", answer=torch.tensor(1.0))),
        "Mine.factor got an answer of shape [], but for 5 distances and 4 query heads it is [5] or [4, 5]; return one number for each distance, or a row of them for each head.",
    ),
    (
        "a factor of None",
        lambda: call(position=user("score_scale", answer=None)),
        "Mine.factor got an answer of type NoneType, but for 5 distances and 4 query heads it is [5] or [4, 5]; return one number for each distance, or a row of them for each head.",
    ),
    (
        "a bias that is a float",
        lambda: call(position=user("bias", answer=1.0)),
        "Mine.bias got an answer of type float, but for 9 distances and 4 query heads it is [9] or [4, 9]; return one number for each distance, or a row of them for each head.",
    ),
    (
        "a sink of n + 1",
        lambda: call(position=user("sink", answer=torch.ones(T + 1))),
        "Mine.sink got an answer of shape [4], but for 3 positions and 4 query heads it is [3] or [4, 3]; return one number for each position, or a row of them for each head.",
    ),
    (
        "a sink of None in reference",
        lambda: call(position=user("sink", answer=None), backend="reference"),
        "Mine.sink got an answer of type NoneType, but for 3 positions and 4 query heads it is [3] or [4, 3]; return one number for each position, or a row of them for each head.",
    ),
    (
        "content without a batch",
        lambda: call(position=user("content_bias", answer=tensor(H, T, T))),
        "Mine.content got an answer of shape [4, 3, 3], but it has the shape [2, 4, 3, 3]; return one number for each place.",
    ),
    (
        "content of one head is not stretched",
        lambda: call(position=user("content_bias", answer=tensor(B, 1, T, T)), backend="reference"),
        "Mine.content got an answer of shape [2, 1, 3, 3], but it has the shape [2, 4, 3, 3]; return one number for each place.",
    ),
    (
        "content of None",
        lambda: call(position=user("content_bias", answer=None), backend="blockwise"),
        "Mine.content got an answer of type NoneType, but it has the shape [2, 4, 3, 3]; return one number for each place.",
    ),
    (
        "content of one head hidden in a sum",
        lambda: call(position=Shaw(D, acts_on="keys") + user("content_bias", answer=tensor(B, 1, T, T))),
        "Mine.content got an answer of shape [2, 1, 3, 3], but it has the shape [2, 4, 3, 3]; return one number for each place.",
    ),
    (
        "values of another width",
        lambda: call(position=user("value_bias", answer=tensor(B, H, T, D + 1))),
        "Mine.values got an answer of shape [2, 4, 3, 9], but it has the shape [2, 4, 3, 8]; return one number for each place.",
    ),
    (
        "values of None in reference",
        lambda: call(position=user("value_bias", answer=None), backend="reference"),
        "Mine.values got an answer of type NoneType, but it has the shape [2, 4, 3, 8]; return one number for each place.",
    ),
    (
        "values of one head hidden in a sum",
        lambda: call(position=Shaw(D) + user("value_bias", answer=tensor(B, 1, T, D))),
        "Mine.values got an answer of shape [2, 1, 3, 8], but it has the shape [2, 4, 3, 8]; return one number for each place.",
    ),
    (
        "rotate that gives one tensor",
        lambda: call(position=user("rotate", answer=tensor(B, H, T, D))),
        "Mine.rotate got an answer of shape [2, 4, 3, 8], but it is a pair, q and k; return both, turned or not.",
    ),
    (
        "rotate that gives None",
        lambda: call(position=user("rotate", answer=None)),
        "Mine.rotate got an answer of type NoneType, but it is a pair, q and k; return both, turned or not.",
    ),
    (
        "rotate that widens q",
        lambda: call(position=user("rotate", answer=(tensor(B, H, T, D + 2), tensor(B, G, T, D + 2)))),
        "Mine.rotate got an answer of shape [2, 4, 3, 10], but it has the shape [2, 4, 3, 8]; return one number for each place.",
    ),
    (
        "rotate that repeats the key heads",
        lambda: call(position=user("rotate", answer=(tensor(B, H, T, D), tensor(B, H, T, D)))),
        "Mine.rotate got an answer of shape [2, 4, 3, 8], but it has the shape [2, 2, 3, 8]; return one number for each place.",
    ),
    (
        "rotate that forgets k in a sum",
        lambda: call(position=Rotary() + user("rotate", answer=(tensor(B, H, T, D), None))),
        "Mine.rotate got an answer of type NoneType, but it has the shape [2, 2, 3, 8]; return one number for each place.",
    ),
    (
        "embed that narrows x",
        lambda: layer(user("embed", answer=tensor(1, 3, 8)))(x()),
        "Mine.embed got an answer of shape [1, 3, 8], but it has the shape [1, 3, 16]; return one number for each place.",
    ),
    (
        "embed of None",
        lambda: layer(user("embed", answer=None))(x()),
        "Mine.embed got an answer of type NoneType, but it has the shape [1, 3, 16]; return one number for each place.",
    ),
]

CACHES = [
    (
        "preallocated and sliding",
        lambda: KVCache(capacity=4, window=2),
        "KVCache(...) got capacity and window, but a cache is preallocated or sliding; drop one of them.",
    ),
    (
        "capacity of zero",
        lambda: KVCache(capacity=0),
        "KVCache(capacity=...) got 0, but capacity is a whole number of at least 1; give a number of tokens.",
    ),
    (
        "window of a fraction in a cache",
        lambda: KVCache(window=1.5),
        "KVCache(window=...) got 1.5, but window is a whole number of at least 1; give a number of tokens.",
    ),
    (
        "rollback below zero",
        lambda: KVCache(window=2, rollback=-1),
        "KVCache(rollback=...) got -1, but rollback is a whole number of at least 0; give a number of tokens.",
    ),
    (
        "capacity of True",
        lambda: KVCache(capacity=True),
        "KVCache(capacity=...) got True, but capacity is a whole number of at least 1; give a number of tokens.",
    ),
    (
        "more queries than new keys",
        lambda: step(KVCache(), q=tensor(B, H, 2, D)),
        "attend(cache=...) got 2 queries with 1 new key, but each cached token brings one query and one key; pass q, k and v of the same new tokens.",
    ),
    (
        "a cache without causality",
        lambda: step(KVCache(), causal=False),
        "attend(cache=...) got causal=False, but a token that was cached never saw the tokens after it; pass causal=True.",
    ),
    (
        "a pair of documents with a cache",
        lambda: step(KVCache(), segment_ids=(torch.tensor([0]), torch.tensor([0]))),
        "attend(cache=..., documents=...) got a pair, but the new tokens are queries and keys at once; pass one tensor.",
    ),
    (
        "a sliding cache and no window",
        lambda: step(KVCache(window=2)),
        "attend(cache=..., window=...) got window=None with a cache that keeps 2, but attention may not look behind what is kept; pass window=2.",
    ),
    (
        "a sliding cache and a wider window",
        lambda: step(KVCache(window=2), window=3),
        "attend(cache=..., window=...) got window=3 with a cache that keeps 2, but attention may not look behind what is kept; pass window=2.",
    ),
    (
        "one token too many",
        lambda: step(holding(capacity=4), tokens=2),
        "attend(cache=...) got 2 tokens with 3 of 4 places taken, but a preallocated cache does not grow; build it with a larger capacity or use KVCache().",
    ),
    (
        "a gradient into a preallocated cache",
        lambda: step(KVCache(capacity=4), k=tensor(B, G, 1, D).requires_grad_()),
        "attend(cache=...) got queries, keys or values that require a gradient, but a preallocated cache overwrites its memory and carries no gradient; decode under torch.no_grad(), or use KVCache().",
    ),
    (
        "another batch",
        lambda: step(holding(), batch=1),
        "attend(k, cache=...) got [batch, heads, width] [1, 2, 8] torch.float32 on cpu, but the cache holds [2, 2, 8] torch.float32 on cpu; use one cache for each layer and batch.",
    ),
    (
        "other heads",
        lambda: step(holding(), k=tensor(B, 4, 1, D), v=tensor(B, 4, 1, D)),
        "attend(k, cache=...) got [batch, heads, width] [2, 4, 8] torch.float32 on cpu, but the cache holds [2, 2, 8] torch.float32 on cpu; use one cache for each layer and batch.",
    ),
    (
        "values of another width in a cache",
        lambda: step(holding(), v=tensor(B, G, 1, 4)),
        "attend(v, cache=...) got [batch, heads, width] [2, 2, 4] torch.float32 on cpu, but the cache holds [2, 2, 8] torch.float32 on cpu; use one cache for each layer and batch.",
    ),
    (
        "another dtype",
        lambda: step(
            holding(), **{n: tensor(B, h, 1, D, dtype=torch.float64) for n, h in (("q", H), ("k", G), ("v", G))}
        ),
        "attend(k, cache=...) got [batch, heads, width] [2, 2, 8] torch.float64 on cpu, but the cache holds [2, 2, 8] torch.float32 on cpu; use one cache for each layer and batch.",
    ),
    (
        "another device",
        lambda: step(holding(), **{n: tensor(B, h, 1, D, device="meta") for n, h in (("q", H), ("k", G), ("v", G))}),
        "attend(q) got a tensor on the meta device, but q holds numbers; create it on a real device, or use torch's FakeTensorMode to infer shapes.",
    ),
    (
        "positions for more than the new tokens",
        lambda: step(holding(), q_positions=torch.arange(4)),
        "attend(q_positions=...) got shape [4], but positions are [1] or [2, 1], one for each token; give one position for each token.",
    ),
    (
        "two positions of new tokens that differ",
        lambda: step(holding(), q_positions=torch.tensor([3]), k_positions=torch.tensor([4])),
        "attend(cache=..., q_positions=..., k_positions=...) got two that differ, but the new tokens are queries and keys at once; pass one of them.",
    ),
    (
        "padding of all tokens rather than the new ones",
        lambda: step(holding(), key_mask=torch.ones(B, 4, dtype=torch.bool)),
        "attend(padding=...) got torch.bool [2, 4], but padding is a bool tensor [2, 1] that is True where a token is real; give one for each token of this call.",
    ),
    (
        "an earlier document again",
        lambda: step(packed(), segment_ids=torch.tensor([0])),
        "attend(documents=...) got a document in several pieces, but positions are counted along tokens that stand side by side; number the pieces differently, or give positions.",
    ),
    (
        "cropped to more than was seen",
        lambda: holding().crop(4),
        "KVCache.crop(length=...) got 4, but length is a whole number of at most 3; give a whole number from 0 to 3, the tokens seen.",
    ),
    (
        "cropped below zero",
        lambda: holding().crop(-1),
        "KVCache.crop(length=...) got -1, but length is a whole number of at least 0; give a whole number from 0 to 3, the tokens seen.",
    ),
    (
        "cropped to a fraction",
        lambda: holding().crop(1.0),
        "KVCache.crop(length=...) got 1.0, but length is a whole number of at least 0; give a whole number from 0 to 3, the tokens seen.",
    ),
    (
        "a sliding cache rolled back further than it can",
        lambda: holding(window=2, rollback=1).crop(1),
        "KVCache.crop got 1 of 3 tokens seen, but a sliding cache with rollback=1 has forgotten the tokens before 1; build it with rollback=2 or more.",
    ),
    (
        "reordered by rows there are not",
        lambda: holding().reorder(torch.tensor([0, 2])),
        "KVCache.reorder(index) got [0, 2], but index is a 1-D integer tensor that names at least one of the rows 0 to 1; give one row for each beam.",
    ),
    (
        "reordered by negative rows",
        lambda: holding().reorder(torch.tensor([-1, 0])),
        "KVCache.reorder(index) got [-1, 0], but index is a 1-D integer tensor that names at least one of the rows 0 to 1; give one row for each beam.",
    ),
    (
        "reordered by floats",
        lambda: holding().reorder(torch.tensor([0.0, 1.0])),
        "KVCache.reorder(index) got [0.0, 1.0], but index is a 1-D integer tensor that names at least one of the rows 0 to 1; give one row for each beam.",
    ),
    (
        "reordered by a mask",
        lambda: holding().reorder(torch.tensor([True, False])),
        "KVCache.reorder(index) got [True, False], but index is a 1-D integer tensor that names at least one of the rows 0 to 1; give one row for each beam.",
    ),
    (
        "reordered by a list",
        lambda: holding().reorder([0, 1]),
        "KVCache.reorder(index) got list, but index is a 1-D integer tensor that names at least one of the rows 0 to 1; give one row for each beam.",
    ),
    (
        "reordered by a matrix",
        lambda: holding().reorder(torch.tensor([[0, 1]])),
        "KVCache.reorder(index) got [[0, 1]], but index is a 1-D integer tensor that names at least one of the rows 0 to 1; give one row for each beam.",
    ),
]

LAYERS = [
    (
        "heads that do not divide the width",
        lambda: Attention(16, 3),
        "Attention(width, heads) got 16 and 3, but heads divides width; choose a divisor or pass head_dim.",
    ),
    (
        "key heads that do not divide the heads",
        lambda: Attention(16, 4, num_kv_heads=3),
        "Attention(num_kv_heads=...) got 3 for 4 heads, but num_kv_heads divides heads; choose a divisor.",
    ),
    (
        "no heads",
        lambda: Attention(16, 0),
        "Attention(heads=...) got 0, but heads is a whole number of at least 1; give such a number.",
    ),
    (
        "no key heads",
        lambda: Attention(16, 4, num_kv_heads=0),
        "Attention(num_kv_heads=...) got 0, but num_kv_heads is a whole number of at least 1; give such a number.",
    ),
    (
        "width as a float",
        lambda: Attention(16.0, 4),
        "Attention(embed_dim=...) got 16.0, but width is a whole number of at least 1; give such a number.",
    ),
    (
        "head width of zero",
        lambda: Attention(16, 4, head_dim=0),
        "Attention(head_dim=...) got 0, but head_dim is a whole number of at least 1; give such a number.",
    ),
    (
        "an unknown norm",
        lambda: Attention(16, 4, norm="layer"),
        "Attention(norm=...) got 'layer', but norm is 'none' or 'rms'; choose one of them.",
    ),
    (
        "a position of the layer that is none",
        lambda: Attention(16, 4, "rotary"),
        "Attention(position=...) got str, but position is a whence.Position; subclass whence.Position.",
    ),
    (
        "x of two axes",
        lambda: layer()(tensor(3, 16)),
        "Attention(x) got shape [3, 16], but x is a tensor [batch, length, 16] with at least one token; give it these axes and that width.",
    ),
    (
        "x of another width",
        lambda: layer()(x(width=8)),
        "Attention(x) got shape [1, 3, 8], but x is a tensor [batch, length, 16] with at least one token; give it these axes and that width.",
    ),
    (
        "x without tokens",
        lambda: layer()(x(length=0)),
        "Attention(x) got shape [1, 0, 16], but x is a tensor [batch, length, 16] with at least one token; give it these axes and that width.",
    ),
    (
        "x that is no tensor",
        lambda: layer()([1.0]),
        "Attention(x) got list, but x is a tensor [batch, length, 16] with at least one token; give it these axes and that width.",
    ),
    (
        "x that is None",
        lambda: layer()(None),
        "Attention(x) got NoneType, but x is a tensor [batch, length, 16] with at least one token; give it these axes and that width.",
    ),
    (
        "memory of another width",
        lambda: layer(causal=False)(x(), x(width=8)),
        "Attention(memory) got shape [1, 3, 8], but memory is a tensor [batch, length, 16] with at least one token; give it these axes and that width.",
    ),
    (
        "memory of another batch",
        lambda: layer(causal=False)(x(batch=2), x()),
        "attend(k) got batch 1 with 2 in q, but batches are equal and never broadcast; use k.expand.",
    ),
    (
        "memory of another length with causality",
        lambda: layer()(x(length=1), x()),
        "Attention(x, memory) got causal=True and no positions, but a memory of other tokens has no order with x unless it is said; build the layer with causal=False, or pass positions and memory_positions.",
    ),
    (
        "an embedding with a memory",
        lambda: layer(Sinusoidal(16), causal=False)(x(), x()),
        "Attention(x, memory) got a position that acts on embeddings, but x and memory are embedded where they are made; embed both outside and use inner(position).",
    ),
    (
        "an embedding of another width",
        lambda: layer(Sinusoidal(8))(x()),
        "Sinusoidal(8) got an input of width 16, but both widths are one; build it with the input's width.",
    ),
    (
        "an embedding past its table",
        lambda: layer(Learned(16, 2))(x()),
        "Learned(max_length=2) got position 2, but its table ends at position 1; build it longer, or use a mechanism that extrapolates.",
    ),
    (
        "an embedding with wrong positions",
        lambda: layer(Sinusoidal(16))(x(), positions=torch.arange(4)),
        "attend(positions=...) got shape [4], but positions are [3] or [1, 3], one for each token; give one position for each token.",
    ),
    (
        "an embedding and a cache of another batch",
        lambda: layer(Sinusoidal(16))(x(batch=2), cache=filled(layer(Sinusoidal(16)))),
        "attend(cache=...) got batch 2 with 1 in the cache, but each row goes on from its own tokens; use one cache for each batch, or reorder it.",
    ),
    (
        "weights of a blockwise layer",
        lambda: layer(Epar(2), backend="blockwise")(x(), return_weights=True),
        "attend(backend='blockwise') got a call it cannot run: it never forms the weights that return_weights asks for, but a named backend runs or refuses; use backend='reference'.",
    ),
    (
        "a mechanism for other heads",
        lambda: layer(Epar(4))(x()),
        "attend(position=Epar) got 4 heads with 2 in q, but a mechanism has the heads of the queries; build it with heads=2.",
    ),
    (
        "rotary on an odd width",
        lambda: Attention(9, 3, Rotary())(x(width=9)),
        "Rotary got a head width of 3, but columns turn in pairs; give an even width=.",
    ),
]

SUMS = [
    (
        "a number added",
        lambda: Alibi(2) + 1,
        "Alibi + ... got int, but only a Position adds to a Position; subclass whence.Position.",
    ),
    (
        "a number in Sum",
        lambda: Sum(Alibi(2), 1),
        "Sum(...) got int, but only a Position adds to a Position; subclass whence.Position.",
    ),
    (
        "two numbers of heads",
        lambda: Alibi(2) + Epar(4),
        "Alibi + Epar got Alibi for 2 heads and Epar for 4 heads, but parts that act in one attention have one number of heads; build them with the same heads.",
    ),
    (
        "three parts and two numbers of heads",
        lambda: Rotary() + Alibi(2) + Sink(4),
        "Rotary + Alibi + Sink got Alibi for 2 heads and Sink for 4 heads, but parts that act in one attention have one number of heads; build them with the same heads.",
    ),
    (
        "the same object twice",
        lambda: same(),
        "Alibi + Alibi got the same object twice, but a part takes part once; build a second one with parameters of its own.",
    ),
    (
        "two sinks",
        lambda: Sink(2) + StableMask(2, context=8),
        "Sink + StableMask got 2 parts with a sink, but a row has one extra logit; keep one of Sink and StableMask.",
    ),
    (
        "two head widths",
        lambda: Shaw(8) + Cope(4),
        "Shaw + Cope got Shaw for width 8 and Cope for width 4, but all parts see the same queries; build them with the same head_dim.",
    ),
]


def packed():
    """A cache that holds two documents."""
    cache = KVCache()
    step(cache, tokens=4, segment_ids=torch.tensor([0, 0, 1, 1]))
    return cache


def filled(model):
    """A cache in which a layer put one row."""
    cache = KVCache()
    with torch.no_grad():
        model(x(), cache=cache)
    return cache


def same():
    alibi = Alibi(2)
    return alibi + alibi


def refused(cases):
    return pytest.mark.parametrize("make, text", [pytest.param(m, t, id=name) for name, m, t in cases])


def check(make, text):
    with pytest.raises(whence.WhenceError) as caught:
        make()
    assert str(caught.value) == text


@refused(INPUTS)
def test_queries_keys_and_values(make, text):
    check(make, text)


@refused(PLACES)
def test_positions_padding_and_documents(make, text):
    check(make, text)


@refused(SETTINGS)
def test_numbers_and_backends(make, text):
    check(make, text)


@refused(MECHANISMS)
def test_mechanisms(make, text):
    check(make, text)


@refused(ANSWERS)
def test_answers_of_hooks(make, text):
    check(make, text)


@refused(CACHES)
def test_caches(make, text):
    check(make, text)


@refused(LAYERS)
def test_layers(make, text):
    check(make, text)


@refused(SUMS)
def test_sums(make, text):
    check(make, text)


@pytest.mark.parametrize("cases", [INPUTS, PLACES, SETTINGS, MECHANISMS, ANSWERS, CACHES, LAYERS, SUMS])
def test_every_text_is_one_sentence_with_a_rule_and_a_mend(cases):
    for _, _, text in cases:
        asked_and_came, rule_and_mend = text.split(", but ", 1)
        assert " got " in asked_and_came and "; " in rule_and_mend
        assert text.endswith(".") and ". " not in text.replace("...", "") and "\n" not in text


def kept(cache):
    """All that a cache answers with, as plain values."""
    tensors = [] if cache._held is None else [t[:, : len(cache)].clone() for t in cache._held.tensors()]
    return repr(cache), tensors


@pytest.mark.parametrize(
    "about", [{}, {"capacity": 8}, {"window": 3, "rollback": 1}], ids=["growing", "preallocated", "sliding"]
)
@pytest.mark.parametrize(
    "wrong",
    [
        {"backend": "sdpa", "position": Epar(H)},
        {"backend": "blockwise", "return_weights": True},
        {"position": user("score_scale", answer=torch.ones(99))},
        {"position": user("rotate", answer=None)},
        {"q_positions": torch.tensor([-1])},
    ],
    ids=["backend", "weights", "a hook's answer", "rotate", "positions"],
)
def test_a_refused_call_leaves_its_cache_as_it_was(about, wrong):
    # otherwise the tokens of the refused call would be there twice when the mended call is made
    cache = holding(**about)
    text, tensors = kept(cache)
    with pytest.raises(whence.WhenceError):
        step(cache, window=about.get("window"), **wrong)
    text_after, tensors_after = kept(cache)
    assert text_after == text
    assert all(torch.equal(a, b) for a, b in zip(tensors, tensors_after, strict=True))
    step(cache, window=about.get("window"))
    assert cache.seen == 4


def test_a_refused_first_call_leaves_an_empty_cache():
    cache = KVCache(capacity=4)
    with pytest.raises(whence.WhenceError):
        step(cache, position=user("bias", answer=None))
    assert (len(cache), cache.seen) == (0, 0)
    step(cache, batch=1)  # nor does it remember the shapes of what was refused


def test_all_that_is_refused_is_a_value_error():
    # so that code which knows nothing of whence catches it
    with pytest.raises(ValueError):
        call(window=0)
