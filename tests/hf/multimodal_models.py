"""Tiny random multimodal models: a language model of two layers and an image encoder of one."""

import torch
import transformers as t

TEXT = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.3,
}  # fmt: skip
PLAIN = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
IMAGE = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
ROTARY = {"rope_type": "default", "rope_theta": 1e4}
QWEN_TEXT = TEXT | PLAIN | {"rope_parameters": ROTARY | {"mrope_section": [1, 1, 2]}}
QWEN_TOKENS = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}

CONFIGS = {
    "llava": lambda: t.LlavaConfig(
        text_config=t.LlamaConfig(**TEXT, **PLAIN),
        vision_config=t.CLIPVisionConfig(**IMAGE, projection_dim=16),
        image_token_index=60,
    ),
    "gemma3": lambda: t.Gemma3Config(
        text_config=TEXT
        | PLAIN
        | {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=IMAGE,
        mm_tokens_per_image=4,
        image_token_index=60,
        boi_token_index=61,
        eoi_token_index=62,
    ),
    "qwen2_vl": lambda: t.Qwen2VLConfig(
        text_config=QWEN_TEXT,
        vision_config={"embed_dim": 16, "hidden_size": 32, "depth": 1, "num_heads": 2, "patch_size": 4},
        **QWEN_TOKENS,
    ),
    "qwen2_5_vl": lambda: t.Qwen2_5_VLConfig(
        text_config=QWEN_TEXT,
        vision_config=IMAGE | {"out_hidden_size": 32, "depth": 1, "num_heads": 2},
        **QWEN_TOKENS,
    ),
    "smolvlm": lambda: t.SmolVLMConfig(
        text_config={"model_type": "llama"} | TEXT | PLAIN, vision_config=IMAGE, image_token_id=60
    ),
    "idefics3": lambda: t.Idefics3Config(
        text_config={"model_type": "llama"} | TEXT | PLAIN, vision_config=IMAGE, image_token_id=60
    ),
    "llama4": lambda: t.Llama4Config(
        text_config=TEXT
        | PLAIN
        | {"head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 64},
        vision_config=IMAGE | {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16},
        image_token_index=60,
    ),
}


def multimodal(family):
    """A model of a family, the same at every call."""
    torch.manual_seed(0)
    return t.AutoModelForImageTextToText.from_config(CONFIGS[family]()).eval()


def cross_attending():
    """One whose second layer reads the image alone."""
    text = TEXT | PLAIN | {"bos_token_id": 1, "cross_attention_layers": [1], "rope_parameters": ROTARY}
    image = IMAGE | {"num_global_layers": 1, "attention_heads": 2, "vision_output_dim": 32}
    image = image | {"intermediate_layers_indices": [0]}
    torch.manual_seed(0)
    config = t.MllamaConfig(text_config=text, vision_config=image, image_token_index=60)
    return t.MllamaForConditionalGeneration(config).eval()
