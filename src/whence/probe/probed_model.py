"""The model that is probed: a causal language model with its tokenizer, and a tiny random one for smoke tests."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence.attention import Attention
from whence.errors import WhenceError, require_package, usage_error
from whence.probe.endpoint import Endpoint
from whence.probe.tasks.task import Prompt, Span

QUICK = "quick"
DTYPES = ("float32", "bfloat16", "float16")
CPU_TOKENS = 4096
PLACEHOLDER = "WHENCE-PROMPT"


@dataclass(frozen=True)
class ProbedModel:
    """A loaded model with its tokenizer and the settings of a probe.

    Args:
        about: what was loaded, for the record.
        chat: put each prompt into the tokenizer's chat template, as a user's message; raw text otherwise.
        capture_layers: the layers whose attention is captured; all by default.
        batch_tokens: tokens in one batch; by default, chosen from the memory of the device.
        intervention: the identity of the intervention that is applied to the model, as ``whence.mend.identify_intervention``
            returns it. It becomes part of the identity of every record.
    """

    name: str
    model: Any
    tokenizer: Any
    about: dict[str, Any] = field(default_factory=dict)
    chat: bool = False
    capture_layers: tuple[int, ...] | None = None
    batch_tokens: int | None = None
    intervention: dict[str, Any] | None = None

    @property
    def config(self) -> Any:
        """The configuration of the language model; for a multimodal model, its text part."""
        return self.model.config.get_text_config()

    @property
    def device(self) -> torch.device:
        """The device of the inputs: that of the first weights in memory, or the one that accelerate runs offloaded weights on."""
        hook = getattr(self.model.get_input_embeddings(), "_hf_hook", None)
        runs_on = getattr(hook, "execution_device", None)
        if runs_on is not None:
            return torch.device(runs_on)
        every = [parameter.device for parameter in self.model.parameters()]
        return next((device for device in every if device.type != "meta"), every[0])

    @property
    def layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def heads(self) -> int:
        return int(getattr(self.config, "num_attention_heads", 1))  # a state-space model has none

    @property
    def longest(self) -> int | None:
        """The number of positions of the model, if its configuration states one."""
        return getattr(self.config, "max_position_embeddings", None)

    @cached_property
    def capture_error(self) -> str | None:
        """Why attention cannot be captured; None if it can. Without capture only the curves are measured."""
        from whence import hf

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            why = hf.capture_unavailable(self.model, self.capture_layers)
        if why is None:
            return None
        return re.sub(r"pass layers=\[([\d, ]+)\]", lambda m: f"pass --layers {m[1].replace(' ', '')}", why)

    @property
    def supports_branching(self) -> bool:
        """Whether several answers can share one forward pass. This needs explicit positions, and no window in any layer.

        Attention that whence replaced accepts only masks that whence built, and a decoder of whence.models takes no mask
        over pairs. A model family that does not use the attention interface of transformers may build its own mask.
        """
        config = self.config
        if getattr(self.model.config, "_attn_implementation", None) == "whence" or self.capture_error:
            return False
        if any(isinstance(module, Attention) for module in self.model.modules()):
            return False
        kinds = getattr(config, "layer_types", None)
        windowed = (
            any(kind != "full_attention" for kind in kinds) if kinds else bool(getattr(config, "sliding_window", 0))
        )
        return not windowed and "position_ids" in inspect.signature(self.model.forward).parameters

    @property
    def pad_token_id(self) -> int:
        """The padding token. Any token will do, because it is always masked."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        return next((int(token) for token in known if token is not None), 0)

    @cached_property
    def newline_tokens(self) -> Tensor:
        """The tokens that contain a line break: ``[tokens]`` bool, on the model's device."""
        texts = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
        head = self.model.get_output_embeddings()
        size = int(getattr(head, "out_features", 0)) or head.weight.shape[0]  # a quantised weight has another shape
        is_newline = ["\n" in text for text in texts] + [False] * max(0, size - len(texts))
        return torch.tensor(is_newline, device=self.device)

    @cached_property
    def template_parts(self) -> tuple[str, str]:
        """The text that the chat template puts before a prompt, and the text between the prompt and the answer."""
        subject = "a chat template"
        if not getattr(self.tokenizer, "chat_template", None):
            raise usage_error(
                subject, f"the tokenizer of {self.name}, which has none", "--chat needs one", "leave it out"
            )
        # templates with a thinking mode begin the answer directly
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": PLACEHOLDER}],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=False,
        )
        before, placeholder, after = text.partition(PLACEHOLDER)
        if not placeholder or PLACEHOLDER in after:
            raise usage_error(
                subject,
                "a template that omits or repeats the message",
                "it must contain a prompt once",
                "leave --chat out",
            )
        return before, after

    def apply_template(self, prompt: Prompt) -> Prompt:
        """The prompt inside the chat template, or unchanged without one."""
        if not self.chat:
            return prompt
        before, after = self.template_parts
        # templates trim messages, and an answer begins where the template ends
        inner = prompt.text.strip()
        offset = len(before) - prompt.text.index(inner)
        return replace(
            prompt,
            text=before + inner + after,
            slots=tuple((start + offset, end + offset) for start, end in prompt.slots),
            answer=prompt.answer.lstrip(),
            rivals=tuple(rival.lstrip() for rival in prompt.rivals),
        )

    def tokens(self, text: str) -> list[int]:
        return self.all_tokens([text])[0]

    def all_tokens(self, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        """The tokens of several texts. With a chat template no special tokens are added, because the template has them."""
        special = special and not self.chat
        return [list(row) for row in self.tokenizer(list(texts), add_special_tokens=special)["input_ids"]]

    def batches(self, lengths: Sequence[int]) -> list[range]:
        """Ranges of neighbouring indices that form one batch: as many as fit when padded to the longest."""
        limit, ranges, first, longest = self.tokens_at_once, [], 0, 0
        for number, length in enumerate(lengths):
            longest = max(longest, length)
            if number > first and longest * (number + 1 - first) > limit:
                ranges.append(range(first, number))
                first, longest = number, length
        return [*ranges, range(first, len(lengths))] if lengths else []

    @property
    def tokens_at_once(self) -> int:
        """Tokens in one batch: few on a CPU, where more are not faster; on a GPU as many as fit into an eighth of its free memory.

        A token has its keys and values in every layer, and a few vectors of the hidden and intermediate size; masks, logits
        and copies take the rest.
        """
        if self.batch_tokens is not None:
            return self.batch_tokens
        if self.device.type != "cuda":
            return CPU_TOKENS
        config = self.config
        hidden_size = int(config.hidden_size)
        cached = 2 * self.layers * hidden_size * getattr(config, "num_key_value_heads", self.heads) // self.heads
        values_per_token = cached + 8 * hidden_size + 4 * getattr(config, "intermediate_size", 4 * hidden_size)
        return max(
            CPU_TOKENS, torch.cuda.mem_get_info(self.device)[0] // (8 * values_per_token * self.model.dtype.itemsize)
        )

    def token_spans(self, text: str, spans: Sequence[Span]) -> list[Span]:
        """The token spans that cover spans of characters."""
        offsets = self.tokenizer(text, return_offsets_mapping=True, add_special_tokens=not self.chat)["offset_mapping"]
        return [token_span(offsets, start, end) for start, end in spans]

    def require_context(self, subject: str, tokens: int) -> None:
        if self.longest is not None and tokens > self.longest:
            raise usage_error(
                subject,
                f"{tokens} tokens",
                f"{self.name} has {self.longest} positions",
                "use fewer or shorter slots",
            )


def require_probed_model(subject: str, lm: object) -> None:
    """Require a ``ProbedModel`` or an ``Endpoint``: a bare model has no tokenizer."""
    if not isinstance(lm, ProbedModel | Endpoint):
        raise usage_error(
            subject,
            f"a {type(lm).__name__}",
            "it takes a model with its tokenizer",
            "pass probe.ProbedModel(name, model, tokenizer), or probe.load(name)",
        )


def token_span(offsets: Sequence[Span], start: int, end: int) -> Span:
    """The first token that ends after ``start``, and one past the last that begins before ``end``.

    >>> token_span([(0, 0), (0, 3), (3, 5), (5, 9)], 3, 6)
    (2, 4)
    """
    inside = [index for index, (first, last) in enumerate(offsets) if last > start and first < end and last > first]
    if not inside:
        raise usage_error("token_span", f"characters {start} to {end}", "some token lies in them", "check the text")
    return inside[0], inside[-1] + 1


def load(
    name: str,
    device: str = "cpu",
    dtype: str = "float32",
    *,
    revision: str | None = None,
    device_map: str | None = None,
    chat: bool = False,
    layers: Sequence[int] | None = None,
    batch_tokens: int | None = None,
    position: str | None = None,
    keep_rotary: bool = True,
    command: str = "whence probe",
) -> ProbedModel:
    """A model by its name, its path, or ``quick`` for the tiny random one. Positions saved in its folder are attached.

    Args:
        revision: a branch, tag or commit on the hub.
        device_map: how accelerate spreads the weights, such as ``"auto"``; ``device`` then does not count.
        position, keep_rotary: a mechanism to attach, as text, and whether the model's own rotation stays active; see
            ``whence.hf.attach``.
        command: what errors name.
        chat, layers, batch_tokens: see ``ProbedModel``.
    """
    settings: dict[str, Any] = {
        "chat": chat, "capture_layers": None if layers is None else tuple(layers), "batch_tokens": batch_tokens,
    }  # fmt: skip
    from whence import hf

    torch_dtype = require_dtype(f"{command} --dtype", dtype)
    if position is None and not keep_rotary:
        raise usage_error(
            command,
            "keep_rotary=False (--replace-rotary) without a position",
            "something takes the place of the model's rotation",
            "pass a position (--position) too, such as NoPosition() or Rotary()",
        )
    if name == QUICK:
        quick = replace(tiny_random_model(), **settings)
        quick.model.to(device=_require_device(f"{command} --device", device), dtype=torch_dtype)
        if position is not None:
            hf.attach(quick.model, position, keep_rotary=keep_rotary)
        return _validate_model(replace(quick, about=quick.about | {"dtype": dtype}), command)
    from whence.hf.load import load_named
    from whence.hf.state_io import saved_position_names

    if device_map is None:
        _require_device(f"{command} --device", device)

    loaded, _ = load_named(f"{command} {name}", name, torch_dtype, device, revision, device_map)
    model, tokenizer = loaded
    if Path(name).expanduser().is_dir() and saved_position_names(Path(name).expanduser()):
        hf.attach_saved(model, name)  # the model of that folder is the one with its positions
    count = sum(p.numel() for p in model.parameters())
    if position is not None:
        hf.attach(model, position, keep_rotary=keep_rotary)
    about = {
        "type": model.config.model_type,
        "parameters": count,
        "layers": model.config.get_text_config().num_hidden_layers,
        "dtype": dtype,
    }
    return _validate_model(ProbedModel(name, model, tokenizer, about, **settings), command)


def require_dtype(subject: str, name: str) -> torch.dtype:
    """The dtype of a name; any other name is an error."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise usage_error(subject, repr(name), f"they are {', '.join(DTYPES)}", "choose one")
    return dtype


def _require_device(subject: str, device: str) -> torch.device:
    """A device of this machine; any other is an error."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # torch's errors for a wrong name and for a missing device
        reason = str(error).splitlines()[0].rstrip(".")
        raise usage_error(subject, f"{device!r} ({reason})", "it is a device of this machine", "pass cpu") from None


def _validate_model(lm: ProbedModel, command: str) -> ProbedModel:
    """Check that the model is causal, has a chat template if one is used, and has the chosen layers."""
    from whence.hf.layers import is_causal, not_causal_error

    if not is_causal(command, lm.model):
        raise not_causal_error(command, lm.model)
    if lm.chat:
        lm.template_parts  # noqa: B018  refuses a tokenizer without one
    if lm.capture_layers is not None and lm.capture_error:
        raise _wrong_layers(lm, lm.capture_error)
    return lm


def _wrong_layers(lm: ProbedModel, why: str) -> WhenceError:
    """The error for layers that cannot be captured: other layers can, or no layer of this model."""
    from whence import hf

    try:
        hf.attention_layers(lm.model)
    except WhenceError:
        return usage_error(
            "whence probe --layers",
            f"a {lm.model.config.model_type} model",
            "its attention cannot be captured, so it is measured by its curves alone",
            "leave --layers out",
        )
    return WhenceError(f"whence probe --layers: {why}")


def tiny_random_model(seed: int = 0, layers: int = 3, hidden_size: int = 32, heads: int = 4) -> ProbedModel:
    """A llama with a few thousand random weights and a byte tokenizer, for smoke tests."""
    require_package("transformers", "whence probe", "hf")
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden_size, intermediate_size=2 * hidden_size, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=max(1, heads // 2), max_position_embeddings=8192,
        initializer_range=0.2, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).eval()
    about = {
        "type": "llama",
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": layers,
        "dtype": "float32",
        "random": seed,
    }
    return ProbedModel(QUICK, model, tokenizer, about)


def byte_tokenizer() -> Any:
    """A tokenizer with one token for each byte and an end token. It needs no file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<end>")


def pad_batch(lm: ProbedModel, rows: Sequence[Sequence[int]], *, left: bool) -> tuple[Tensor, Tensor]:
    """Rows of several lengths as one padded tensor, and its attention mask."""
    longest = max(map(len, rows))
    tokens = torch.full((len(rows), longest), lm.pad_token_id, dtype=torch.long)
    real = torch.zeros_like(tokens)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        tokens[index, place] = torch.tensor(row)
        real[index, place] = 1
    return tokens.to(lm.device), real.to(lm.device)
