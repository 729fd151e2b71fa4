"""A small Qwen3 of transformers, and the decoder of whence.models with its shape and weights."""

import torch
import transformers

from whence.models import PRESETS, ModelSpec

VOCABULARY = 40
SIZES = {"embed_dim": 24, "heads": 4, "num_kv_heads": 2, "head_dim": 8, "layers": 2, "ffn_dim": 36}
SPEC = ModelSpec("decoder", VOCABULARY, **{**PRESETS["qwen3-20m"], **SIZES})
NAMES = {
    "embed_tokens": "embedding", "input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm",
    "self_attn.q_proj": "attention.queries", "self_attn.k_proj": "attention.keys", "self_attn.v_proj": "attention.values",
    "self_attn.o_proj": "attention.out", "self_attn.q_norm": "attention.query_norm", "self_attn.k_norm": "attention.key_norm",
    "mlp.gate_proj": "feed_forward.gate", "mlp.up_proj": "feed_forward.into", "mlp.down_proj": "feed_forward.out",
}  # fmt: skip


def tiny_qwen3():
    config = transformers.Qwen3Config(
        vocab_size=40, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6, tie_word_embeddings=True, initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.normal_()
    return model


def copy_qwen3_weights(qwen3, decoder):
    """Every weight of the decoder but those of its positions."""
    state = {}
    for name, weight in qwen3.model.named_parameters():
        for old, new in NAMES.items():
            name = name.replace(f"{old}.", f"{new}.")
        state["body." + ("final_norm.weight" if name == "norm.weight" else name)] = weight
    missing, unexpected = decoder.load_state_dict(state, strict=False)
    assert not unexpected and all("position" in name for name in missing)
