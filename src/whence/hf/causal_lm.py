"""``WhenceForCausalLM``: the decoder of ``whence.models`` as a model of transformers.

``save_pretrained``, ``from_pretrained``, ``generate``, ``Trainer`` and every tool that takes a causal language model work on
it. Importing this module registers it, so ``AutoModelForCausalLM.from_pretrained(folder)`` finds it; ``whence.hf.load`` does
that by itself. A saved folder has a file that imports this module, for programs that pass ``trust_remote_code=True`` instead.
The config stores the Position as its text (see ``whence.position.expression``). Nothing is pickled.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from whence import plugins
from whence.errors import WhenceError, require_package, usage_error
from whence.hf.decoder_cache import DecoderCache
from whence.hf.extra_arguments import check_extra_arguments
from whence.hf.position_ids import resolve_position_ids
from whence.hf.settings import describe, difference
from whence.models import Decoder, ModelSpec, build
from whence.models.inspection import reference_backend
from whence.position.expression import ModelDims, build_position, parse_position, split_outside

require_package("transformers", "whence.hf.WhenceForCausalLM", "hf")
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel  # noqa: E402
from transformers.modeling_outputs import CausalLMOutputWithPast  # noqa: E402

MODEL_TYPE = "whence"
#: fields of ModelSpec that a config stores under their own names
SPEC_FIELDS = tuple(field for field in fields(ModelSpec) if field.name not in ("kind", "vocab_size", "num_classes"))
#: the file of a saved folder that transformers runs with trust_remote_code=True
MODELING_FILE = "modeling_whence.py"
MODELING_SOURCE = '''"""The model of this folder. Its classes are those of the installed package whence, with the extra hf."""

from whence.hf import WhenceConfig, WhenceForCausalLM

__all__ = ["WhenceConfig", "WhenceForCausalLM"]
'''
AUTO_MAP = {
    "AutoConfig": "modeling_whence.WhenceConfig",
    "AutoModelForCausalLM": "modeling_whence.WhenceForCausalLM",
}


class WhenceConfig(PreTrainedConfig):
    """The settings of a decoder and the text of its Position.

    Args:
        vocab_size: number of tokens.
        position: the Position as text, such as ``"rotary + PowerPrior(learnable=True)"``; the sizes of the model are filled in.
        context: length of the training inputs, which some mechanisms need.
        settings: the other fields of ``ModelSpec``, and arguments of every config of transformers.

    A saved config that names code outside of whence (``my_module:Bell``) is an error unless the caller names it too:
    ``from_pretrained(folder, position="my_module:Bell")``.
    """

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "embed_dim",
        "intermediate_size": "ffn_dim",
        "max_position_embeddings": "context",
        "num_attention_heads": "heads",
        "num_hidden_layers": "layers",
        "num_key_value_heads": "num_kv_heads",
    }

    def __init__(self, vocab_size: int = 256, position: str = "none", context: int = 1024, **settings: Any) -> None:
        self.vocab_size, self.context = vocab_size, context
        self.position = parse_position(position).text  # without short names, whose meaning may change
        for field in SPEC_FIELDS:
            setattr(self, field.name, settings.pop(field.name, field.default))
        settings["tie_word_embeddings"] = False  # tie_embeddings decides; a tied output has no weight to tie
        super().__init__(**settings)

    @classmethod
    def from_spec(cls, spec: ModelSpec, position: str = "none", *, context: int = 1024, **settings: Any) -> Self:
        """The config of a decoder with this spec."""
        if not isinstance(spec, ModelSpec) or spec.kind != "decoder":
            got = f"a spec of an {spec.kind}" if isinstance(spec, ModelSpec) else type(spec).__name__
            raise usage_error("WhenceConfig.from_spec(spec)", got, "it must describe a decoder", "pass kind='decoder'")
        values = asdict(spec)
        del values["kind"], values["num_classes"]
        return cls(position=position, context=context, **values, **settings)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """A config from its JSON values. ``position`` in the keywords overrides the saved one."""
        saved = config_dict.get("position", "none")
        if kwargs.get("position") is not None:
            config_dict = {**config_dict, "position": kwargs["position"]}
        elif isinstance(saved, str):
            outside = [piece.strip() for piece in split_outside(saved) if plugins.is_reference(piece.strip())]
            if outside:
                rule = "a saved config may not choose code outside of whence to run"
                remedy = f'pass position="{saved}" to run it'
                raise usage_error("WhenceConfig.from_dict(...)", f"the position {outside[0]}", rule, remedy)
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write config.json, and the file with which ``trust_remote_code=True`` loads it where whence was not imported."""
        self.auto_map = dict(AUTO_MAP)
        folder = Path(save_directory)
        if not folder.is_file():  # else transformers raises
            folder.mkdir(parents=True, exist_ok=True)
            (folder / MODELING_FILE).write_text(MODELING_SOURCE, encoding="utf-8")
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing: transformers calls it after ``trust_remote_code=True``, and would then save a copy of this module."""

    @property
    def spec(self) -> ModelSpec:
        """The spec of the decoder."""
        return ModelSpec("decoder", self.vocab_size, **{field.name: getattr(self, field.name) for field in SPEC_FIELDS})

    @property
    def dims(self) -> ModelDims:
        """The sizes that the Position is built for."""
        spec = self.spec
        return ModelDims(spec.heads, spec.effective_head_dim, spec.embed_dim, self.context)


class WhenceForCausalLM(PreTrainedModel, GenerationMixin):
    """A decoder with any Position as a causal language model of transformers.

    Its logits are those of ``self.decoder``, a ``whence.models.Decoder``. ``attention_mask`` is 1 for real tokens, with padding
    on either side; padding takes no position, so ``position_ids`` are only needed for other positions than those of counting.
    ``generate`` uses the decoder's own caches.

    Example::

        config = WhenceConfig.from_spec(qwen3_20m(), "rotary + PowerPrior(learnable=True)", context=512)
        model = WhenceForCausalLM(config)
        model.save_pretrained("trained")
        model = AutoModelForCausalLM.from_pretrained("trained")
    """

    config_class = WhenceConfig
    config: WhenceConfig
    base_model_prefix = "decoder"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # Trainer then passes num_items_in_batch
    _no_split_modules = ["Layer"]

    def __init__(self, config: WhenceConfig) -> None:
        super().__init__(config)
        dims = config.dims
        # from_pretrained builds a model on the device "meta", where a Position cannot compute its constants
        with torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext():
            decoder = build(config.spec, lambda layer: build_position(config.position, dims))
        assert isinstance(decoder, Decoder)
        self.decoder = decoder
        self.post_init()

    @classmethod
    def from_pretrained(cls, folder: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """The model that ``save_pretrained`` wrote, as in transformers. A checkpoint without some of its weights is an error."""
        loaded: Any = super().from_pretrained(folder, *args, output_loading_info=True, **kwargs)
        model, info = loaded
        if missing := sorted(info["missing_keys"]):
            raise usage_error(
                f'WhenceForCausalLM.from_pretrained("{folder}")',
                f"a checkpoint without {len(missing)} of the model's weights, such as {missing[0]}",
                "its position and sizes must be those that it was saved with",
                "leave out arguments that change them, or save it again",
            )
        return (model, info) if output_loading_info else model

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing, as in the config."""

    @classmethod
    def from_decoder(cls, decoder: Decoder, position: str, *, context: int) -> Self:
        """A model that contains this decoder, without a copy. The text must describe its positions."""
        subject = "WhenceForCausalLM.from_decoder(...)"
        if not isinstance(decoder, Decoder):
            got, rule = type(decoder).__name__, "the first argument must be a decoder of whence.models"
            raise usage_error(subject, got, rule, "build it with whence.models.build")
        model = cls(WhenceConfig.from_spec(decoder.spec, position, context=context))
        ours, theirs = _positions(decoder), _positions(model.decoder)
        texts = [difference(describe(one), describe(other)) for one, other in zip(ours, theirs, strict=False)]
        problem = next((text for text in texts if text), None)
        if problem is None and len(ours) != len(theirs):
            problem = f"{len(ours)} mechanisms at its input and in its layers, while the text has {len(theirs)}"
        if problem is not None:
            got = f"a decoder with {problem.replace('the attached one', 'the text').replace('is attached', 'is in the text')}"
            rule = "the config stores the text, from which the decoder must be built again"
            raise usage_error(subject, got, rule, "pass the text and the context that it was built from")
        model.decoder = decoder
        return model

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: DecoderCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        segment_ids: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        position_ids: Tensor | None = None,
        **further: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Next-token logits ``[B, T, vocab_size]``.

        Args:
            input_ids: tokens ``[B, T]``; with a cache, only the new ones.
            attention_mask: ``[B, T]``, or ``[B, S]`` for all S tokens of the cache and the new ones; 1 for real tokens.
            past_key_values: the ``past_key_values`` of an earlier output.
            labels: ``[B, T]`` tokens, -100 to ignore; they are shifted here, so pass the inputs themselves.
            use_cache: whether to return a cache; by default only if one is passed.
            output_attentions: whether to return the weights of every layer, computed by the dense reference.
            output_hidden_states: whether to return the input of each layer and the output of the last one.
            return_dict: False returns a tuple.
            logits_to_keep: compute logits for the last ``n`` tokens only, or for these indices; 0 for all.
            segment_ids: ``[B, T]`` segments of packed sequences.
            num_items_in_batch: divides the sum of the losses, as Trainer passes it; by default the number of labels.
            position_ids: ``[B, T]`` or ``[1, T]`` positions that increase in each segment; by default the real tokens before
                each token of its segment are counted, which continues after those of the cache. As in transformers, ids that
                start again are packed sequences, where neither a mask nor a cache is passed.
            further: arguments of other models. ``cu_seq_lens_*``, ``max_length_*``, ``seq_idx``, ``cache_position`` and
                ``token_type_ids`` are ignored where they change nothing; all others are an error.
        """
        if input_ids is None:
            got, rule = "no input_ids", "the decoder embeds tokens itself"
            raise usage_error("WhenceForCausalLM(input_ids=...)", got, rule, "pass input_ids, without inputs_embeds")
        cache = self._find_cache(past_key_values, use_cache)
        config, body = self.config, self.decoder.body
        wants_weights = config.output_attentions if output_attentions is None else output_attentions
        wants_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        key_mask, positions = _new_key_mask(attention_mask, input_ids, cache), None
        caches = None if cache is None else cache.caches
        if position_ids is not None:
            body.check_tokens(input_ids)
            positions, segment_ids = resolve_position_ids(body, position_ids, input_ids, key_mask, segment_ids, caches)
        if further:
            body.check_tokens(input_ids)
            seen = 0 if cache is None else cache.get_seq_length()
            check_extra_arguments(further, ARGUMENTS, input_ids, segment_ids, seen)
        weights: list[Tensor] | None = [] if wants_weights else None
        states: list[Tensor] | None = [] if wants_states else None
        with nullcontext() if weights is None else reference_backend(body):
            x = body(
                input_ids,
                positions=positions,
                key_mask=key_mask,
                segment_ids=segment_ids,
                cache=caches,
                weights_into=weights,
                states_into=states,
            )
        rows = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.decoder.output(x[:, rows], body.embedding.weight)
        loss = None
        if labels is not None:
            options = {} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=config.vocab_size, **options)
        of_layers: dict[str, Any] = {"hidden_states": states, "attentions": weights}
        of_layers = {name: tuple(each) for name, each in of_layers.items() if each is not None}
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache, **of_layers)
        return output.to_tuple() if return_dict is False else output

    def _find_cache(self, given: Any, use_cache: bool | None) -> DecoderCache | None:
        if given is None:
            return DecoderCache(self.decoder.caches()) if use_cache else None
        if not isinstance(given, DecoderCache):
            rule = "its keys are stored before rotation, which no cache of transformers does"
            remedy = "omit it, and pass the past_key_values of an output to continue"
            raise usage_error("WhenceForCausalLM(past_key_values=...)", type(given).__name__, rule, remedy)
        return given

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # generate then leaves the cache to the model

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = DecoderCache(self.decoder.caches())

    def _prepare_position_ids_for_generation(self, inputs_tensor: Any, model_kwargs: dict[str, Any]) -> Any:
        return None  # the decoder counts them from the mask and the cache

    def _init_weights(self, module: Any) -> None:
        """Nothing: ``build`` has initialized every weight."""

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.decoder.body.embedding

    def get_output_embeddings(self) -> torch.nn.Module:
        """The module whose ``weight`` gives the logits."""
        tied = self.decoder.output.weight is None
        return self.decoder.body.embedding if tied else self.decoder.output

    def set_input_embeddings(self, value: Any) -> None:
        raise self._fixed_vocabulary("set_input_embeddings")

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        raise self._fixed_vocabulary("set_output_embeddings")

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        raise self._fixed_vocabulary("resize_token_embeddings")

    def _fixed_vocabulary(self, method: str) -> WhenceError:
        return usage_error(
            f"WhenceForCausalLM.{method}(...)",
            f"a vocabulary other than {self.config.vocab_size}",
            "the vocabulary is fixed when the model is built",
            "build a model with a larger vocab_size",
        )


#: the names of the arguments of a call
ARGUMENTS = tuple(
    name for name in inspect.signature(WhenceForCausalLM.forward).parameters if name not in ("self", "further")
)


def _positions(decoder: Decoder) -> list[torch.nn.Module]:
    """The mechanisms at the input of a decoder, then those of its layers."""
    return [*decoder.body.at_input, *(layer.attention.position for layer in decoder.body.stack())]


def _new_key_mask(mask: Tensor | None, tokens: Tensor, cache: DecoderCache | None) -> Tensor | None:
    """The part of an attention mask for the new tokens, as bool; the cache knows the padding among its own."""
    if mask is None:
        return None
    new = tokens.shape[1]
    seen = 0 if cache is None else cache.get_seq_length()
    if mask.ndim != 2 or mask.shape[0] != tokens.shape[0] or mask.shape[1] not in (new, seen + new):
        raise usage_error(
            "WhenceForCausalLM(attention_mask=...)",
            f"shape {list(mask.shape)} for tokens of shape {list(tokens.shape)} after {seen} in the cache",
            "it must be [batch, tokens] with 1 for real tokens; causality is added here",
            "pass the attention_mask of the tokenizer, and segment_ids for packed sequences",
        )
    return mask[:, -new:].bool()


AutoConfig.register(MODEL_TYPE, WhenceConfig, exist_ok=True)
AutoModelForCausalLM.register(WhenceConfig, WhenceForCausalLM, exist_ok=True)
