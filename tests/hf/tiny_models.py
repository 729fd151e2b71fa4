"""Tiny random models of the families that are attached to, wide enough in their weights for attention to matter."""

import torch
import transformers as t

SIZE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = SIZE | {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256}
MIXED = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
PLAIN = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}

CONFIGS = {
    "llama": lambda: t.LlamaConfig(**GROUPED),
    "qwen3": lambda: t.Qwen3Config(**GROUPED, head_dim=8),
    "gemma3": lambda: t.Gemma3TextConfig(**GROUPED, **MIXED, head_dim=8),
    "gemma2": lambda: t.Gemma2Config(**GROUPED, **MIXED, head_dim=8, attn_logit_softcapping=0.5),
    "mistral": lambda: t.MistralConfig(**GROUPED, sliding_window=6),
    "gpt_neox": lambda: t.GPTNeoXConfig(**SIZE, intermediate_size=48, max_position_embeddings=256),
    "gpt2": lambda: t.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "opt": lambda: t.OPTConfig(**SIZE, word_embed_proj_dim=32, ffn_dim=48, max_position_embeddings=256),
    "qwen2": lambda: t.Qwen2Config(**GROUPED),
    "phi3": lambda: t.Phi3Config(**GROUPED, pad_token_id=0),
    "olmo2": lambda: t.Olmo2Config(**GROUPED),
    "gpt_oss": lambda: t.GptOssConfig(
        **GROUPED,
        **MIXED,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
    "bloom": lambda: t.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
    "falcon": lambda: t.FalconConfig(**SIZE),
    "gptj": lambda: t.GPTJConfig(vocab_size=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=8, n_positions=64),
}
REFUSED = ("bloom", "falcon", "gptj")
FAMILIES = tuple(name for name in CONFIGS if name not in REFUSED)


def tiny(family, **changes):
    """A model of a family, the same at every call."""
    config = CONFIGS[family]()
    for name, value in {**PLAIN, "initializer_range": 0.3, **changes}.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    # some versions of transformers run a softcapped model without its softcap unless its attention is the eager one
    capped = {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}
    return t.AutoModelForCausalLM.from_config(config, **capped).eval()


def tokens(batch=2, length=14, seed=1):
    return torch.randint(3, 64, (batch, length), generator=torch.Generator().manual_seed(seed))


def left_padded(ids, missing):
    """A batch whose rows lack so many tokens at the beginning: tokens, mask and positions as ``generate`` makes them."""
    mask = torch.ones_like(ids)
    for row, count in enumerate(missing):
        mask[row, :count] = 0
    return {
        "input_ids": ids * mask,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0),
    }


def everything_of(model):
    """All that a model is, for telling whether anything is left of what was done to it."""
    parts = [
        (
            name,
            sorted(part.__dict__),
            sorted(part._modules),
            part.training,
            len(part._forward_hooks),
            len(part._forward_pre_hooks),
        )
        for name, part in model.named_modules()
    ]
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return (parts, model.config._attn_implementation, model.config.to_dict()), weights


def same(before, after):
    about, weights = before
    about_now, weights_now = after
    return (
        about == about_now
        and weights.keys() == weights_now.keys()
        and all(torch.equal(tensor, weights_now[name]) for name, tensor in weights.items())
    )
