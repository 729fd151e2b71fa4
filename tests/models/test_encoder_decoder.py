"""The encoder-decoder: three attentions with any position, padding that changes nothing, and one computation with and without
caches."""

import math

import pytest
import torch
import torch.nn.functional as F
from small_models import HEAD_WIDTH, HEADS, VOCABULARY, WIDTH, assert_same, tokens

from whence import Alibi, Attention, Cope, Epar, Learned, Rotary, Shaw, Sinusoidal, T5Bias, TransformerXL, WhenceError
from whence.models import ModelSpec, build, build_encoder_decoder

SYMMETRIC = {
    "none": None,
    "rotary": Rotary(),
    "alibi": Alibi(HEADS, form="symmetric"),
    "epar": Epar(),
    "epar of the sequence": Epar(length="sequence"),
    "shaw": Shaw(HEAD_WIDTH, clip=4, std=0.3),
    "xl": TransformerXL(HEADS, HEAD_WIDTH),
    "t5": T5Bias(HEADS, form="bidirectional", std=1.0),
    "learned + epar": Learned(WIDTH, 64) + Epar(),
    "sinusoidal": Sinusoidal(WIDTH),
}
CACHED = [name for name in SYMMETRIC if name != "epar of the sequence"]  # its length grows with every token


def spec(**about):
    about = {"embed_dim": WIDTH, "heads": HEADS, "layers": 2, "ffn_dim": 12} | about
    return ModelSpec("encoder-decoder", VOCABULARY, **about)


def encoder_decoder(position=None, cross=None, encoder=None, **about):
    model = build_encoder_decoder(spec(**about), position, cross_position=cross, encoder_position=encoder, seed=0)
    return model.double().eval()


@pytest.mark.parametrize("name, norm", [*((name, "pre") for name in CACHED), ("shaw", "post")])
def test_cached_steps_match_a_full_forward(name, norm):
    model = encoder_decoder(SYMMETRIC[name], SYMMETRIC[name], num_kv_heads=1, norm=norm)
    source, target = tokens(length=7), tokens(length=6, seed=1)
    with torch.no_grad():
        whole = model(source, target)
        encoded = model.encode(source)
        for caches in (model.caches(), model.caches(capacity=6)):
            parts = [model.decode(part, encoded, cache=caches) for part in target.split([3, 1, 2], 1)]
            assert_same(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("name", SYMMETRIC)
@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_padding_changes_nothing(name, side):
    model = encoder_decoder(SYMMETRIC[name], SYMMETRIC[name])
    source, target = tokens(length=5), tokens(length=4, seed=1)
    where = {"left": [0, 1], "right": [5, 6], "middle": [2, 3]}[side]
    real = torch.ones(2, 7, dtype=torch.bool)
    real[0, where] = False  # the second row is longer
    padded = tokens(length=7, seed=2)
    padded[0, real[0]] = source[0]
    assert_same(model(padded, target, real)[:1], model(source, target)[:1])
    assert_same(model(padded, target, real)[1:], model(padded, target)[1:])
    late = torch.cat([tokens(length=2, seed=3), target], 1)  # padding before the target
    mask = torch.arange(6).ge(2).expand(2, 6)
    if name != "epar of the sequence":
        assert_same(model(source, late, None, mask)[:, 2:], model(source, target))


@pytest.mark.parametrize("name", ["rotary", "alibi", "epar", "epar of the sequence", "shaw", "xl", "t5"])
def test_cross_attention_matches_the_reference(name):
    """Every backend that runs equals the dense float64 reference, with one position for each side and a projected memory."""
    torch.manual_seed(0)
    layer = Attention(WIDTH, HEADS, SYMMETRIC[name], num_kv_heads=1).double()
    x, memory = torch.randn(2, 4, WIDTH).double(), torch.randn(2, 6, WIDTH).double()
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    here, there = torch.arange(3, 7), torch.arange(6)
    results = []
    for backend in ("reference", "blockwise", "auto"):
        layer.backend = backend
        for passed in (memory, layer.project_memory(memory)):
            results.append(layer(x, passed, positions=here, memory_positions=there, key_mask=mask))
    for result in results[1:]:
        assert_same(result, results[0])


def test_the_distance_of_cross_attention_is_target_minus_source_position():
    """By hand: a penalty of slope * |i - j| between query i of the target and key j of the source."""
    model = encoder_decoder(cross=Alibi(HEADS, form="symmetric"), layers=1)
    layer = model.decoder.decoder_layers()[0]
    encoded = model.encode(tokens(length=6), torch.arange(6).ge(2).expand(2, 6))
    memory, x = encoded.layers[0], torch.randn(2, 4, WIDTH).double()
    distance = torch.arange(4)[:, None] - (torch.arange(6) - 2)
    slopes = layer.cross_attention.position.slope().view(HEADS, 1, 1)
    q = layer.cross_attention.queries(layer.cross_norm(x)).unflatten(2, (HEADS, -1)).transpose(1, 2)
    scores = q @ memory.k.transpose(2, 3) / math.sqrt(HEAD_WIDTH) - slopes * distance.abs()
    scores = scores.masked_fill(torch.arange(6) < 2, -math.inf)
    expected = x + layer.cross_attention.out((scores.softmax(-1) @ memory.v).transpose(1, 2).flatten(2))
    assert_same(layer.attend_to_source(x, memory, encoded, torch.arange(4)), expected)


def test_the_target_sees_all_of_the_source_and_no_later_target():
    model = encoder_decoder(Rotary())
    source, target = tokens(length=5), tokens(length=5, seed=1)
    before = model(source, target)
    changed = target.clone()
    changed[:, 3] = (changed[:, 3] + 1) % VOCABULARY
    assert_same(model(source, changed)[:, :3], before[:, :3])
    assert not torch.allclose(model(source, changed)[:, 3:], before[:, 3:])
    changed = source.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCABULARY
    assert ((model(changed, target) - before).abs().amax(2) > 1e-6).all()


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"init": "scaled", "tie_embeddings": True, "norm": "post"},
        {"norm_type": "rms", "gated_ffn": True, "qk_norm": True, "bias": False},
    ],
)
def test_gradients_reach_every_parameter(about):
    position = Learned(WIDTH, 16) + Epar(learnable=True)
    model = encoder_decoder(position, Shaw(HEAD_WIDTH, clip=2), **about).train()
    loss = F.cross_entropy(model(tokens(), tokens(seed=1)).flatten(0, 1), tokens(seed=2).flatten())
    loss.backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    # a bias of the keys shifts all scores of a query alike, so its gradient is exactly or nearly 0
    assert [name for name in missing if not name.endswith("keys.bias")] == []


def test_one_seed_gives_the_same_weights_whatever_the_positions_are():
    plain, other = encoder_decoder(), encoder_decoder(Learned(WIDTH, 16) + Epar(), Shaw(HEAD_WIDTH, clip=2))
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, dict(other.named_parameters())[name]), name


def test_each_attention_has_its_own_position():
    model = build_encoder_decoder(spec(), Alibi(HEADS), encoder_position=Rotary(), cross_position=Epar())
    names = [type(model.encoder.layers[0].attention.position), type(model.decoder.layers[0].attention.position)]
    assert [*names, type(model.decoder.layers[0].cross_attention.position)] == [Rotary, Alibi, Epar]
    learned = build_encoder_decoder(spec(), Learned(WIDTH, 16) + Epar(learnable=True))
    owners = [module for module in learned.modules() if isinstance(module, Learned)]
    assert len(owners) == 2 and owners[0].table is not owners[1].table


@pytest.mark.parametrize(
    "call, subject, got, remedy",
    [
        (lambda m: build(spec()), "build(spec)", "kind='encoder-decoder'", "build_encoder_decoder"),
        (lambda m: build_encoder_decoder(ModelSpec("decoder", 9)), "(spec)", "kind='decoder'", "ModelSpec('encoder-decoder'"),
        (lambda m: build_encoder_decoder(spec(), Alibi(HEADS)), "(encoder_position=...)", "Alibi", "symmetric form"),
        (lambda m: build_encoder_decoder(spec(), cross_position=Cope(8)), "(cross_position=...)", "Cope", "another cross_position"),
        (lambda m: ModelSpec("encoder-decoder", 9, num_classes=2), "kind='encoder-decoder'", "num_classes=2", "omit num_classes"),
        (lambda m: m(tokens(batch=3), tokens()), "decode(target)", "2 rows for 3 sources", "as many targets"),
        (lambda m: m.decode(tokens(), tokens()), "decode(source)", "Tensor", "model.encode(source)"),
        (lambda m: m.generate(tokens(), 2, bos_token_id=13), "(bos_token_id=...)", "13", "0 to 12"),
        (lambda m: m.beam_search(tokens(), 2, bos_token_id=0, num_beams=0), "(num_beams=...)", "0", "num_beams=1"),
        (lambda m: m.beam_search(tokens(), 2, bos_token_id=0, length_penalty=math.inf), "(length_penalty=...)", "inf", "pass 0"),
    ],
)  # fmt: skip
def test_errors(call, subject, got, remedy):
    with pytest.raises(WhenceError) as caught:
        call(encoder_decoder())
    assert all(part in str(caught.value) for part in (subject, got, remedy)), caught.value


def test_a_failed_call_leaves_the_caches_unchanged():
    model = encoder_decoder(Learned(WIDTH, 6))
    encoded, caches = model.encode(tokens(length=4)), model.caches()
    model.decode(tokens(length=5), encoded, cache=caches)
    with pytest.raises(WhenceError):
        model.decode(tokens(length=5), encoded, cache=caches)
    assert caches.seq_length == 5


def test_copying_is_learned():
    """Six symbols copied backwards: a loss far below chance after a few steps says that cross-attention is used."""
    torch.manual_seed(0)
    about = ModelSpec("encoder-decoder", 8, embed_dim=32, heads=4, layers=1, ffn_dim=32, dropout=0.0)
    model = build_encoder_decoder(about, Sinusoidal(32), seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(70):
        source = torch.randint(2, 8, (32, 4))
        target = source.flip(1)
        shifted = torch.cat([torch.zeros(32, 1, dtype=torch.long), target[:, :-1]], 1)
        loss = F.cross_entropy(model(source, shifted).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 < math.log(6) < losses[0]
    source = torch.randint(2, 8, (16, 4))
    copied = model.generate(source, 4, bos_token_id=0, temperature=0)
    assert (copied == source.flip(1)).float().mean() > 0.9


def test_a_qwen3_shape_and_gradient_checkpointing():
    qwen3 = {
        "norm_type": "rms",
        "qk_norm": True,
        "gated_ffn": True,
        "activation": "silu",
        "head_dim": 6,
        "dropout": 0.0,
    }
    model = encoder_decoder(Rotary(), Rotary(), **qwen3).train()
    source, target = tokens(length=7), tokens(length=6, seed=1)
    results = []
    for checkpointing in (False, True):
        model.encoder.gradient_checkpointing = model.decoder.gradient_checkpointing = checkpointing
        calls = []
        hook = model.decoder.layers[0].register_forward_pre_hook(lambda *unused, calls=calls: calls.append(1))
        model.zero_grad()
        out = model(source, target)
        out.square().sum().backward()
        hook.remove()
        assert len(calls) == 1 + checkpointing  # once more in the backward pass
        results.append([out, *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        assert_same(a, b)
