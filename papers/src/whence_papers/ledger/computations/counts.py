"""Counts: parameters of models and attention modules, multiplications, and the items of the speeches data.

The counts of the speeches need the data folder. Without it their records stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from whence.attention.additive import AdditiveAttention
from whence.attention.pointer import PointerAttention
from whence.errors import MissingExtra, WhenceError
from whence.models import ModelSpec, build, parameter_table
from whence.position import Alibi, NoPosition, Position, Recency, Sinusoidal
from whence_papers.ledger.claims import MissingEvidence

KINDS = {"none": lambda spec: NoPosition(), "sinusoidal": lambda spec: Sinusoidal(spec.embed_dim),
         "alibi": lambda spec: Alibi(spec.heads, form="symmetric", scale=1.1)}  # fmt: skip


def model_parameters(spec: dict[str, Any], position: str = "sinusoidal") -> dict[str, Any]:
    """Parameter counts of all parts of a model, by name, with the total."""
    model_spec = ModelSpec(**spec)
    counts: dict[str, Any] = {}
    table = parameter_table(build(model_spec, lambda layer: KINDS[position](model_spec), seed=0))
    for part in table.parts:
        counts[part.name.replace(" ", "_")] = part.count
        for inside in part.inside[:1] if part.name == "layers" else part.inside:
            counts[f"{part.name}_{inside.name}".replace(" ", "_")] = inside.count
            for within in inside.inside:
                counts[f"layer_{within.name}".replace(" ", "_").replace("-", "_")] = within.count
    return counts | {"total": table.total}


def position_parameters(spec: dict[str, Any], first: str, second: str) -> dict[str, Any]:
    """Additional parameters of a model with the second position instead of the first, and those of that position."""
    counts = [model_parameters(spec, position)["total"] for position in (first, second)]
    own: Position = KINDS[second](ModelSpec(**spec))
    return {"more_parameters": counts[1] - counts[0], "learned_by_position": sum(p.numel() for p in own.parameters())}


def vocabulary_for(total: float, spec: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the layers alone, and the vocabulary size with which tied embeddings give the total."""
    model_spec = ModelSpec(**spec)
    one = ModelSpec(**(spec | {"layers": 1}))
    table = parameter_table(build(one, lambda layer: NoPosition(), seed=0))
    rows = dict(table.rows)
    layers = rows["layers"] * model_spec.layers  # all layers are equal; building one is enough
    rest = total - layers - rows.get("final norm", 0)
    return {"layers": layers, "vocabulary": rest / model_spec.embed_dim}


def additive_attention(attention: int, encoder: int, decoder: int) -> dict[str, Any]:
    """Parameters of ``AdditiveAttention``, and without one of its two vectors."""
    with torch.device("meta"):
        total = _numbers(AdditiveAttention(encoder, decoder, attention))
    return {"total": total, "total_without_one_vector": total - attention,
            "words": f"Without one of the two vectors of {attention} it is {total - attention:,}."}  # fmt: skip


def pointer_attention(embed_dim: int, positions: int) -> dict[str, Any]:
    """Parameters of ``PointerAttention`` with ``Recency``: without biases of the projections, as printed, and with them."""
    with torch.device("meta"):
        printed, code = (PointerAttention(embed_dim, Recency(positions), bias=bias) for bias in (False, True))
    return {"total_as_printed": _numbers(printed), "total_of_code": _numbers(code)}


def _numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def equal_widths(embed_dim: int, positions: int, keys: int) -> dict[str, Any]:
    """Both attentions at one dimension: parameters, and multiplications per score, counted in the same way."""
    additive, pointer = (
        additive_attention(embed_dim, embed_dim, embed_dim)["total"],
        pointer_attention(embed_dim, positions),
    )
    costs = multiplications(embed_dim, embed_dim, embed_dim, embed_dim, keys)
    return {
        "additive": additive,
        "pointer": pointer["total_as_printed"],
        "more_numbers_of_additive": additive - pointer["total_as_printed"],
        "additive_cost_over_pointer": costs["additive"] / costs["pointer"],
    }


def multiplications(attention: int, encoder: int, decoder: int, embed_dim: int, keys: int) -> dict[str, Any]:
    """Multiplications per score of one query over ``keys`` keys, with all projections and with precomputed keys.

    Additive: project each key, project the query, multiply v by tanh. Dot product: the same with the product of query and
    key instead of v. A tanh does not count.
    """
    return {
        "additive": attention * encoder + attention * decoder / keys + attention,
        "pointer": embed_dim * embed_dim + embed_dim * embed_dim / keys + embed_dim,
        "additive_with_kept_keys": attention * decoder / keys + attention,
        "pointer_with_kept_keys": embed_dim * embed_dim / keys + embed_dim,
    }


def speeches_counts(context: int) -> dict[str, Any]:
    """Vocabulary size, items, share of padding, and the number of test sentences that occur in the training file."""
    from whence_papers.speeches import data

    subject = "whence claims"
    try:
        nltk = data.load_tokenizer(subject)
        words = data.build_vocabulary(subject, nltk.split).size
        train, _ = data.read_labelled(subject, "train_CLS.tsv")
        test, _ = data.read_labelled(subject, "test_CLS.tsv")
    except (WhenceError, MissingExtra) as error:
        raise MissingEvidence(f"the speeches' files ({error})") from None
    in_training = set(train)
    lengths = [min(context, len(nltk.split(text))) for text in train]
    return {
        "vocabulary": words,
        "training_items": len(train),
        "test_items": len(test),
        "padding_percent": 100 * (1 - sum(lengths) / (context * len(train))),
        "test_items_in_training": sum(text in in_training for text in test),
        "words": f"nltk {nltk.version}; other versions cut other words.",
    }


COMPUTATIONS = (
    model_parameters, position_parameters, vocabulary_for, additive_attention, pointer_attention, equal_widths,
    multiplications, speeches_counts,
)  # fmt: skip
