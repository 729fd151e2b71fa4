"""Answers in a model's own words, several prompts at a time, always the likeliest token next."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from whence.probe.subject import Subject, batch_of
from whence.probe.tasks.prompts import Prompt

#: the published length of an answer to a question; a value needs its own tokens and room for a few words before it
LONGEST_ANSWER = 100
ROOM = 16


@torch.inference_mode()
def answers(subject: Subject, prompts: Sequence[Prompt], metric: str) -> list[str]:
    """What the model writes after each prompt. Where only the first line counts, it stops when every row has one."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    rows = subject.all_tokens([prompt.text for prompt in prompts])
    longest = LONGEST_ANSWER
    if metric == "value":
        longest = ROOM + max(map(len, subject.all_tokens([prompt.answer for prompt in prompts], special=False)))
    subject.require_room("answers", max(map(len, rows)) + longest)

    class FirstLine(StoppingCriteria):  # its base is loaded with transformers, so it cannot stand outside
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
            return subject.ends_line[input_ids[:, -1]]

    stop = StoppingCriteriaList([FirstLine()] if metric == "subspan" else [])
    texts: list[str] = []
    for some in subject.batches([len(row) + longest for row in rows]):
        tokens, real = batch_of(subject, [rows[index] for index in some], left=True)
        made = subject.model.generate(
            input_ids=tokens, attention_mask=real, max_new_tokens=longest, do_sample=False, num_beams=1,
            stopping_criteria=stop, pad_token_id=subject.padding,
        )  # fmt: skip
        texts += subject.tokenizer.batch_decode(made[:, tokens.shape[1] :], skip_special_tokens=True)
    return texts
