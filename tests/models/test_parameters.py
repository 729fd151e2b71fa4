"""The counts of the source (a four-layer encoder and decoder over 5755 tokens), to the last parameter."""

import pytest
import torch
from small_models import HEADS, WIDTH, decoder, decoder_spec

from whence import Alibi, Learned, Sinusoidal, T5Bias
from whence.models import ModelSpec, Part, build, parameter_table

SOURCE = {"vocab_size": 5755, "embed_dim": 64, "heads": 2, "layers": 4, "ffn_dim": 100}
LAYER = (
    Part("attention", 16_640),
    Part("feed-forward in", 6_500),
    Part("feed-forward out", 6_464),
    Part("attention norm", 128),
    Part("feed-forward norm", 128),
)


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("position", [Sinusoidal(64), Alibi(2, form="symmetric")], ids=["Sinusoidal", "Alibi"])
def test_the_sources_encoder(position):
    model = build(ModelSpec("encoder", num_classes=3, **SOURCE), position)
    table = parameter_table(model)
    assert table.rows == (("embedding", 368_320), ("layers", 119_440), ("classifier", 6_803))
    assert table.parts[1].inside == tuple(Part(f"layer {n}", 29_860, LAYER) for n in range(4))
    assert table.parts[2].inside == (Part("hidden", 6_500), Part("classes", 303))
    assert table.total == count(model) == 494_563


def test_the_sources_decoder():
    model = build(ModelSpec("decoder", **SOURCE), Sinusoidal(64))
    table = parameter_table(model)
    assert table.rows == (("embedding", 368_320), ("layers", 119_440), ("final norm", 128), ("output", 374_075))
    assert table.total == count(model) == 861_963
    assert str(table).splitlines() == [
        "embedding              368,320",
        "layers                 119,440",
        "  each of 4             29,860",
        "    attention           16,640",
        "    feed-forward in      6,500",
        "    feed-forward out     6,464",
        "    attention norm         128",
        "    feed-forward norm      128",
        "final norm                 128",
        "output                 374,075",
        "total                  861,963",
    ]


def test_parameters_of_position_have_their_own_rows():
    model = decoder(Learned(WIDTH, 32) + T5Bias(HEADS))
    table = parameter_table(model)
    assert dict(table.rows)["position at the input"] == 32 * WIDTH
    for layer in table.parts[2].inside:
        assert Part("position", 32 * HEADS) in layer.inside
    assert table.total == count(model)


def test_shared_parameters_count_once():
    shared = T5Bias(HEADS)
    model = build(decoder_spec(tie_embeddings=True), lambda layer: shared)
    table = parameter_table(model)
    with_position = [any(part.name == "position" for part in layer.inside) for layer in table.parts[1].inside]
    assert with_position == [True, False]
    assert dict(table.rows)["output"] == model.output.bias.numel()
    assert table.total == count(model)
    assert "  layer 0" in str(table) and "  layer 1" in str(table)


def test_without_biases_only_norms_have_them():
    model = decoder(bias=False)
    biased = {name.rsplit(".", 2)[-2] for name, _ in model.named_parameters() if name.endswith("bias")}
    assert biased == {"attention_norm", "feed_forward_norm", "final_norm"}
    assert parameter_table(model).total == count(model)
    assert torch.isfinite(model(torch.tensor([[1, 2]]))).all()


def test_a_gate_and_the_norms_of_queries_and_keys_have_their_own_rows():
    model = decoder(gated_ffn=True, qk_norm=True, norm_type="rms", num_kv_heads=1)
    layer = {part.name: part.count for part in parameter_table(model).parts[1].inside[0].inside}
    assert layer["feed-forward gate"] == layer["feed-forward in"] == WIDTH * 12 + 12
    assert layer["query and key norm"] == 2 * WIDTH // HEADS and layer["attention norm"] == WIDTH
    assert parameter_table(model).total == count(model)
