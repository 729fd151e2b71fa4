"""The families of transformers that are tested, as data: a tiny configuration of each, and the cells of its row in
docs/families.md. ``family_cells`` measures the cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

COLUMNS = (
    "attach",
    "rotation",
    "capture",
    "probe",
    "save",
    "dynamic cache",
    "static cache",
    "sliding cache",
    "compile",
)

SIZE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = SIZE | {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256}
HEADS = GROUPED | {"head_dim": 8}
FULL = GROUPED | {"num_key_value_heads": 4}
MIXED = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
LATENT = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "topk_group": 1,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2,
}  # fmt: skip
CODERS = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_start_token_id": 1,
}  # fmt: skip
VISION = {
    "model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 32, "image_size": 32, "patch_size": 8,
}  # fmt: skip
#: what keeps a tiny random model quiet and makes its attention matter
COMMON = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0, "initializer_range": 0.3}

#: the short reason in the table, and the words of the error that stand for it
REASONS = {
    "computes its attention itself": "computes its attention itself",
    "no attention": "no layer of which calls the attention interface",
    "layers share an attention module": "serves several layers",
    "encoder-decoder": "an encoder-decoder",
    "encoder": "in which a token sees later ones",
    "takes no tokens": "which takes no tokens",
    "mask and cache differ in length": "with a mask for",
    "no mask": "got no mask",
}
YES = dict.fromkeys(COLUMNS, "yes") | {"rotation": "all layers", "sliding cache": "n/a"}


@dataclass(frozen=True)
class Family:
    """A family, a tiny configuration of it, and the cells that differ from a llama's."""

    name: str
    config: str
    settings: dict[str, Any]
    differs: dict[str, str] = field(default_factory=dict)
    model: str = "AutoModelForCausalLM"

    @property
    def expected(self) -> dict[str, str]:
        return YES | self.differs

    @property
    def available(self) -> bool:
        """Whether the installed transformers has it."""
        return hasattr(transformers, self.config)

    def build(self) -> Any:
        """The same model at every call."""
        config = getattr(transformers, self.config)(**self.settings)
        for part in (config, config.get_text_config()):
            for name, value in COMMON.items():
                setattr(part, name, value)
        torch.manual_seed(0)
        if self.model != "AutoModelForCausalLM":
            return getattr(transformers, self.model)(config).eval()
        # some versions of transformers run a softcapped model without its softcap unless its attention is the eager one
        capped = {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}
        return transformers.AutoModelForCausalLM.from_config(config, **capped).eval()


def refused(reason: str, **differs: str) -> dict[str, str]:
    """The cells of a family without attach and capture; the curve of its answers needs neither."""
    cell = f"refused ({reason})"
    return dict.fromkeys(COLUMNS, "n/a") | {"attach": cell, "capture": cell, "probe": "curve only"} | differs


def hybrid(layers: str, **differs: str) -> dict[str, str]:
    """The cells of a family in which some layers attend."""
    return {"attach": f"layers={layers}", "capture": f"layers={layers}", "rotation": f"layers {layers}"} | differs


WINDOW = {"sliding cache": "yes"}
NO_ROTATION = {"rotation": "none"}
NO_CACHE = {"dynamic cache": "n/a", "static cache": "n/a"}  # the model alone gives other logits, or has no cache
NOT_TOKENS = {"probe": "n/a"}

FAMILIES = [
    Family("llama", "LlamaConfig", GROUPED),
    Family(
        "llama4_text",
        "Llama4TextConfig",
        HEADS | {"intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 6, "no_rope_layers": [1, 0]},
        {"rotation": "layers [0]", "sliding cache": "yes"},
    ),
    Family("mistral", "MistralConfig", GROUPED | {"sliding_window": 6}, WINDOW),
    Family("ministral", "MinistralConfig", HEADS | MIXED, WINDOW),
    Family("mixtral", "MixtralConfig", GROUPED | LOCAL_EXPERTS),
    Family("qwen2", "Qwen2Config", GROUPED),
    Family("qwen2_moe", "Qwen2MoeConfig", GROUPED | EXPERTS | {"shared_expert_intermediate_size": 16}),
    Family("qwen3", "Qwen3Config", HEADS),
    Family("qwen3_moe", "Qwen3MoeConfig", HEADS | EXPERTS),
    Family("gemma", "GemmaConfig", HEADS),
    Family("gemma2", "Gemma2Config", HEADS | MIXED | {"attn_logit_softcapping": 0.5}, WINDOW),
    Family("gemma3_text", "Gemma3TextConfig", HEADS | MIXED, WINDOW),
    Family("phi", "PhiConfig", GROUPED),
    Family("phi3", "Phi3Config", GROUPED),
    Family("phimoe", "PhimoeConfig", GROUPED | {"num_local_experts": 4}),
    Family("gpt2", "GPT2Config", GPT, NO_ROTATION),
    Family("gpt_bigcode", "GPTBigCodeConfig", GPT, NO_ROTATION),
    Family("gpt_neox", "GPTNeoXConfig", SIZE | {"intermediate_size": 48, "max_position_embeddings": 256}),
    Family(
        "opt",
        "OPTConfig",
        SIZE | {"word_embed_proj_dim": 32, "ffn_dim": 48, "max_position_embeddings": 256},
        NO_ROTATION,
    ),
    Family("biogpt", "BioGptConfig", SIZE | {"intermediate_size": 48, "max_position_embeddings": 256}, NO_ROTATION),
    Family(
        "ctrl",
        "CTRLConfig",
        GPT | {"dff": 48},
        NO_ROTATION | {"compile": "n/a (the model itself does not trace)"},
    ),
    Family("olmo", "OlmoConfig", GROUPED),
    Family("olmo2", "Olmo2Config", GROUPED),
    Family("olmo3", "Olmo3Config", GROUPED | MIXED, WINDOW),
    Family("olmoe", "OlmoeConfig", GROUPED | {"num_experts": 4, "num_experts_per_tok": 2}),
    Family("cohere", "CohereConfig", GROUPED),
    Family("cohere2", "Cohere2Config", GROUPED | MIXED, {"rotation": "layers [0]"} | WINDOW),
    Family("smollm3", "SmolLM3Config", GROUPED | {"no_rope_layers": [1, 0]}, {"rotation": "layers [0]"}),
    Family("granite", "GraniteConfig", GROUPED),
    Family("granitemoe", "GraniteMoeConfig", GROUPED | LOCAL_EXPERTS),
    Family("stablelm", "StableLmConfig", GROUPED),
    Family("starcoder2", "Starcoder2Config", GROUPED | {"sliding_window": 6}, WINDOW),
    Family(
        "gpt_oss",
        "GptOssConfig",
        HEADS | MIXED | LOCAL_EXPERTS | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        WINDOW,
    ),
    Family("deepseek_v2", "DeepseekV2Config", FULL | LATENT | {"n_group": 1}),
    Family("deepseek_v3", "DeepseekV3Config", FULL | LATENT | {"n_group": 2}),
    Family("glm", "GlmConfig", HEADS),
    Family("glm4", "Glm4Config", HEADS),
    Family("nemotron", "NemotronConfig", GROUPED),
    Family("exaone4", "Exaone4Config", GROUPED | MIXED, {"rotation": "layers [0]"} | WINDOW),
    Family("ernie4_5", "Ernie4_5Config", GROUPED),
    Family("helium", "HeliumConfig", HEADS),
    Family("persimmon", "PersimmonConfig", FULL),
    Family("bitnet", "BitNetConfig", GROUPED),
    Family("hunyuan_v1_dense", "HunYuanDenseV1Config", HEADS),
    Family("seed_oss", "SeedOssConfig", HEADS),
    Family("arcee", "ArceeConfig", GROUPED),
    Family("apertus", "ApertusConfig", GROUPED),
    Family("diffllama", "DiffLlamaConfig", GROUPED),
    Family("moshi", "MoshiConfig", GROUPED, {"rotation": "inside the attention module"}),
    Family(
        "inkling",
        "InklingTextConfig",
        HEADS
        | {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "sliding_window_size": 6}
        | {"d_rel": 4, "rel_extent": 8, "layer_types": ["sliding_attention", "full_attention"]}
        | {"mlp_layer_types": ["dense", "dense"], "moe_intermediate_size": 16, "n_routed_experts": 4},
        NO_ROTATION | NO_CACHE,
    ),
    Family(
        "minimax",
        "MiniMaxConfig",
        HEADS | {"num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"], "block_size": 8},
        hybrid("[1]") | {"dynamic cache": "refused (mask and cache differ in length)", "static cache": "n/a"},
    ),
    Family(
        "jamba",
        "JambaConfig",
        GROUPED
        | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
        | {"mamba_d_state": 4},
        hybrid("[1]", rotation="none"),
    ),
    Family("bamba", "BambaConfig", GROUPED | MAMBA | {"attn_layer_indices": [1]}, hybrid("[1]")),
    Family(
        "granitemoehybrid",
        "GraniteMoeHybridConfig",
        GROUPED | LOCAL_EXPERTS | MAMBA | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16},
        hybrid("[1]", rotation="none"),
    ),
    Family("lfm2", "Lfm2Config", GROUPED | {"layer_types": ["conv", "full_attention"]}, hybrid("[1]")),
    Family(
        "qwen3_next",
        "Qwen3NextConfig",
        HEADS
        | EXPERTS
        | {"layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 16}
        | {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
        hybrid("[1]"),
    ),
    Family("falcon_h1", "FalconH1Config", GROUPED | MAMBA | {"mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_expand": 1}),
    Family(
        "nemotron_h",
        "NemotronHConfig",
        HEADS
        | {"hybrid_override_pattern": "M*", "layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4}
        | {"mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1},
        hybrid("[1]", rotation="none") | NO_CACHE,
    ),
    Family(
        "recurrent_gemma",
        "RecurrentGemmaConfig",
        GROUPED | {"attention_window_size": 6, "lru_width": 32, "block_types": ["recurrent", "attention"]},
        hybrid("[1]", rotation="inside the attention module") | NO_CACHE,
    ),
    Family(
        "zamba2",
        "Zamba2Config",
        GROUPED
        | {"layers_block_type": ["mamba", "hybrid"], "use_mamba_kernels": False, "mamba_d_state": 4}
        | {"n_mamba_heads": 4, "mamba_ngroups": 1, "num_mem_blocks": 1, "hybrid_layer_ids": [1]},
        refused("layers share an attention module"),
    ),
    Family("mamba", "MambaConfig", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}, refused("no attention")),
    Family(
        "bloom",
        "BloomConfig",
        {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        refused("computes its attention itself"),
    ),
    Family("falcon", "FalconConfig", SIZE, refused("computes its attention itself")),
    Family("falcon (ALiBi)", "FalconConfig", SIZE | {"alibi": True}, refused("computes its attention itself")),
    Family("gptj", "GPTJConfig", GPT | {"rotary_dim": 8}, refused("computes its attention itself")),
    Family(
        "gpt_neo",
        "GPTNeoConfig",
        {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 256}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 6},
        refused("computes its attention itself"),
    ),
    Family(
        "mpt",
        "MptConfig",
        {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256},
        refused("computes its attention itself"),
    ),
    Family("codegen", "CodeGenConfig", GPT | {"rotary_dim": 8, "n_ctx": 256}, refused("computes its attention itself")),
    Family(
        "xglm",
        "XGLMConfig",
        {"vocab_size": 64, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48}
        | {"max_position_embeddings": 256},
        refused("computes its attention itself"),
    ),
    Family(
        "llava",
        "LlavaConfig",
        {"text_config": {"model_type": "llama"} | GROUPED, "vision_config": VISION, "image_token_index": 63},
        model="LlavaForConditionalGeneration",
    ),
    Family(
        "gemma3",
        "Gemma3Config",
        {"text_config": HEADS | MIXED, "vision_config": VISION | {"model_type": "siglip_vision_model"}}
        | {"mm_tokens_per_image": 4, "image_token_index": 63, "boi_token_index": 62, "eoi_token_index": 61},
        WINDOW,
        "Gemma3ForConditionalGeneration",
    ),
    Family("bert", "BertConfig", SIZE | {"intermediate_size": 32}, refused("encoder") | NOT_TOKENS, "BertForMaskedLM"),
    Family(
        "modernbert",
        "ModernBertConfig",
        SIZE | {"intermediate_size": 32, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 1},
        refused("encoder") | NOT_TOKENS,
        "ModernBertForMaskedLM",
    ),
    Family(
        "vit",
        "ViTConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
        | {"image_size": 32, "patch_size": 16},
        refused("takes no tokens") | NOT_TOKENS,
        "ViTModel",
    ),
    Family(
        "t5",
        "T5Config",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4},
        refused("encoder-decoder") | NOT_TOKENS,
        "T5ForConditionalGeneration",
    ),
    Family("bart", "BartConfig", CODERS, refused("encoder-decoder") | NOT_TOKENS, "BartForConditionalGeneration"),
    Family(
        "whisper",
        "WhisperConfig",
        CODERS | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1},
        refused("encoder-decoder") | NOT_TOKENS,
        "WhisperForConditionalGeneration",
    ),
]  # fmt: skip
