"""The encoder: an LSTM in both directions, and its two last states reduced to the decoder's first."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class BothWays(nn.Module):
    """Reads vectors ``[B, S, embedding]``; padding on the right changes nothing.

    states ``[B, S, 2 * hidden]`` are those of both directions side by side; the decoder starts from
    ``h = relu(W [h_forward; h_backward] + b)``, and c likewise with weights of its own.
    """

    def __init__(self, embedding: int, hidden_size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(embedding, hidden_size, batch_first=True, bidirectional=True)
        self.reduce_h = nn.Linear(2 * hidden_size, hidden_size)
        self.reduce_c = nn.Linear(2 * hidden_size, hidden_size)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """States ``[B, S, 2 * hidden]``, 0 on padding, and the decoder's first h and c ``[B, hidden]``."""
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (h, c) = self.lstm(packed)
        states, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        ends = (torch.cat([last[0], last[1]], -1) for last in (h, c))
        first_h, first_c = (
            reduce(end).relu() for reduce, end in zip((self.reduce_h, self.reduce_c), ends, strict=True)
        )
        return states, first_h, first_c
