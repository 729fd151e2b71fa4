"""Random histories of a cache against recomputation: each row of the batch alone, from its own tokens, without a cache.

The rule for positions that nobody gives: padding takes no position, wherever it lies and in whichever chunk it comes. Each
real token follows the last real token of its row (of its document, if documents are given), and the first has position 0.

``pytest tests/attention/test_cache_histories.py --cases 2000`` runs more histories than the suite does. A history is its
number: ``-k '[417]'`` runs one again.
"""

import copy
import itertools
import random
from dataclasses import dataclass

import independent_reference as plain
import pytest
import torch
from random_mechanisms import EFFECTS, MAKERS, draw_names, draw_position, fit_dims

from whence import Attention, KVCache, WhenceError, attend

CAPACITY = 40


@dataclass(frozen=True)
class Slot:
    """One token of a row, real or padding: where its tensors lie, and where it stands."""

    chunk: int
    row: int
    place: int
    real: bool
    position: float
    document: int


class History:
    """A cache, and beside it a plain list of what each row of it must know."""

    def __init__(self, number):
        self.rng = rng = random.Random(number)
        torch.manual_seed(number)
        names = list(MAKERS)
        while True:
            self.names = draw_names(rng, names[number % len(names)])
            self.groups, share = rng.randint(1, 2), rng.randint(1, 3)
            self.heads = self.groups * share
            dims = rng.choice([2, 3, 4, 6]), rng.choice([1, 3, 4])
            self.dim, self.value_dim = fit_dims(self.names, *dims)
            self.mechanism = draw_position(rng, self.names, self.heads, self.dim, self.value_dim, torch.float64)
            if not self.mechanism.any("no_cache"):
                break
        self.kind = rng.choice(["growing", "growing", "preallocated", "sliding"])
        self.batch = rng.randint(1, 3)
        self.packed = rng.random() < 0.4
        self.positions = rng.choice(["counted", "counted", "given", "mixed"])
        self.fractional = rng.random() < 0.3 and not self.mechanism.any("whole")
        self.key_mask = rng.choice([[], ["left"], ["right"], ["left", "right", "holes", "lengths"]])
        self.window = rng.choice([None, 1, 2, 5, 12])
        self.learns = self.kind != "preallocated" and rng.random() < 0.4
        self.cache = self.make_cache()
        how = {"window": self.window} | rng.choice([{}, {"scale": 0.7}, {"temperature": 2.0}, {"scale": -1.5}])
        self.settings = {name: value for name, value in how.items() if value is not None}
        self.layer = None
        if any(EFFECTS[name] & {"embed", "clock"} for name in self.names) or rng.random() < 0.1:
            self.layer = Attention(
                self.heads * self.dim, self.heads, self.mechanism.position, num_kv_heads=self.groups, head_dim=self.dim,
                value_dim=self.value_dim, causal=True, **self.settings,
            ).double()  # fmt: skip
        self.chunks = []  # the tensors of each call
        self.rows = [[] for _ in range(self.batch)]  # of Slot
        self.has_documents = False  # whether documents were given since the cache was empty
        self.log = []  # what happened, for the message
        self.total = torch.zeros((), dtype=torch.float64)  # what is differentiated at the end: of the package
        self.expected = torch.zeros((), dtype=torch.float64)  # and of the reference
        source = self.mechanism.position if self.layer is None else self.layer
        prefix = "position." if self.layer is None else ""
        self.parameters = dict(source.named_parameters())
        self.state = {n: t.detach().clone().requires_grad_() for n, t in self.parameters.items()}
        tensors = self.state | dict(source.named_buffers())
        self.tensors = {prefix + n: t for n, t in tensors.items()}

    def make_cache(self):
        if self.kind == "preallocated":
            return KVCache(capacity=CAPACITY)
        if self.kind == "growing":
            return KVCache()
        self.rollback = self.rng.choice([0, 0, 3, 10])
        self.window = self.window or 7
        return KVCache(window=self.window + self.rng.choice([0, 0, 2]), rollback=self.rollback)

    def __str__(self):
        about = f"{self.mechanism.position!r}\n{self.cache!r} packed={self.packed} {self.settings} layer={self.layer is not None}"
        return "\n".join([about, *self.log])

    # --- one more chunk ------------------------------------------------------------------------------------------------
    def extend(self):
        rng, batch, has_documents = self.rng, len(self.rows), self.has_documents
        count = rng.choice([1, 1, 1, 2, 3, 6])
        real, given = self.draw_padding(batch, count)
        segment_ids = self.draw_documents(batch, count, given)
        positions = self.draw_positions(batch, count, real, segment_ids, given)
        number = len(self.chunks)
        if self.layer is None:
            shapes = {"q": (self.heads, count, self.dim), "k": (self.groups, count, self.dim), "v": (self.groups, count, self.value_dim)}  # fmt: skip
        else:
            shapes = {"x": (count, self.heads * self.dim)}
        chunk = {n: torch.randn(batch, *s, dtype=torch.float64).requires_grad_(self.learns) for n, s in shapes.items()}
        backend = rng.choice(["auto", "reference", "blockwise"])
        self.log.append(f"{number}: {count} tokens by {backend} {given}")
        if self.kind == "preallocated" and self.cache.seq_length + count > CAPACITY:
            with pytest.raises(WhenceError):
                self.call(chunk, given, backend)
            self.log.append("   refused")
            return
        try:
            out = self.call(chunk, given, backend)
        except WhenceError:
            if "q_positions" not in given or not self.too_close(positions):
                raise
            self.log.append("   refused")
            self.has_documents = has_documents
            return
        self.chunks.append(chunk)
        for row in range(batch):
            self.rows[row] += [
                Slot(number, row, i, bool(real[row, i]), float(positions[row][i]), int(segment_ids[row, i]))
                for i in range(count)
            ]
        assert self.cache.seq_length == len(self.rows[0])
        self.compare(out, count)

    def too_close(self, positions):
        """Whether a sliding cache, which forgets by count, may refuse: tokens less than 1 apart crowd its window."""
        rows = [[*(s.position for s in row[-1:]), *new] for row, new in zip(self.rows, positions, strict=True)]
        return self.kind == "sliding" and any(b - a < 1 for row in rows for a, b in itertools.pairwise(row))

    def call(self, chunk, given, backend):
        if self.layer is None:
            about = self.settings | given | {"position": self.mechanism.position, "backend": backend}
            return attend(*chunk.values(), causal=True, cache=self.cache, **about)
        about = dict(given)
        if "q_positions" in about:
            about["positions"] = about.pop("q_positions")
        self.layer.backend = backend
        return self.layer(**chunk, cache=self.cache, **about)

    def draw_padding(self, batch, count):
        """Which tokens are real; a sliding cache takes padding only before a row's first real token."""
        rng = self.rng
        real = torch.ones(batch, count, dtype=torch.bool)
        if not self.key_mask or rng.random() < 0.4:
            return real, {}
        kind = rng.choice(self.key_mask)
        if self.kind == "sliding":
            if "left" not in self.key_mask or (self.rows[0] and any(s.real for row in self.rows for s in row)):
                return real, {}
            kind = "left"
        sizes = torch.tensor([rng.randint(0, count) for _ in range(batch)])
        place = torch.arange(count)
        if kind == "left":
            real = place >= count - sizes[:, None]
        elif kind == "holes":
            real = torch.rand(batch, count) < 0.6
        else:
            real = place < sizes[:, None]
        return real, {"lengths": sizes} if kind == "lengths" else {"key_mask": real}

    def draw_documents(self, batch, count, given):
        """Document numbers that go on or begin anew; without the argument a packed row's last document goes on."""
        last = [row[-1].document if row else 0 for row in self.rows]
        goes_on = torch.tensor(last)[:, None].expand(batch, count)
        if not self.packed or (self.has_documents and self.rng.random() < 0.3):
            return goes_on
        steps = (torch.rand(batch, count) < 0.25).long()
        if len(set(last)) == 1 and self.rng.random() < 0.3:
            given["segment_ids"] = last[0] + steps[0].cumsum(-1)
            segment_ids = given["segment_ids"].expand(batch, count)
        else:
            segment_ids = given["segment_ids"] = torch.tensor(last)[:, None] + steps.cumsum(-1)
        self.has_documents = True
        return segment_ids

    def draw_positions(self, batch, count, real, segment_ids, given):
        """Where the new tokens of each row stand, by the rule or by argument."""
        rng = self.rng
        by_rule = []
        for row in range(batch):
            last = {slot.document: slot.position for slot in self.rows[row] if slot.real}
            actual = []
            for place in range(count):
                document = int(segment_ids[row, place])
                actual.append(last.get(document, -1.0) + 1)
                if real[row, place]:
                    last[document] = actual[-1]
            by_rule.append(actual)
        if self.positions == "counted" or (self.positions == "mixed" and rng.random() < 0.5):
            return by_rule
        part = (
            torch.randint(0, 3, (batch, count)) / 8 if self.fractional else torch.zeros(batch, count, dtype=torch.long)
        )
        if self.positions == "given" and self.kind != "sliding":
            actual = torch.randint(0, 30, (batch, count)) + part
        else:  # after the last of each row, with gaps
            first = [max([-1.0, *(slot.position for slot in row)]) for row in self.rows]
            steps = torch.randint(1, 3, (batch, count)).cumsum(-1)
            actual = torch.tensor([int(f) for f in first])[:, None] + steps + part
            if any(f != int(f) for f in first):
                actual = actual + 1
        if rng.random() < 0.3 and batch == 1:
            actual = actual[0]
        given["q_positions"] = actual
        return actual.expand(batch, count).tolist()

    # --- what the reference says ---------------------------------------------------------------------------------------
    def compare(self, out, count):
        __tracebackhide__ = True
        parts = self.mechanism.parts(
            {n.removeprefix("position."): t for n, t in self.tensors.items() if n.startswith("position.")}
        )
        for row, slots in enumerate(self.rows):
            keys = [slot for slot in slots if slot.real]
            queries = [slot for slot in slots[-count:] if slot.real]
            if not queries:
                continue
            wanted = self.recompute(queries, keys, parts)
            places = [slot.place for slot in queries]
            got = out[row, :, places] if self.layer is None else out[row, places]
            require_close(f"row {row}", got, wanted, self)
            upstream = torch.randn_like(wanted)
            self.total = self.total + (got * upstream).sum()
            self.expected = self.expected + (wanted * upstream).sum()

    def recompute(self, queries, keys, parts):
        """The outputs of some tokens of a row from all its real tokens."""
        q_positions, k_positions = (
            torch.tensor([s.position for s in side], dtype=torch.float64) for side in (queries, keys)
        )
        if self.layer is None:
            q, k, v = (
                torch.stack([self.chunks[s.chunk][name][s.row, :, s.place] for s in side], 1)
                for name, side in (("q", queries), ("k", keys), ("v", keys))
            )
        else:
            q, k, v = (
                self.project(name, side, where, parts)
                for name, side, where in (("queries", queries, q_positions), ("keys", keys, k_positions), ("values", keys, k_positions))
            )  # fmt: skip
        x = None if self.layer is None else self.embed(keys, k_positions, parts)
        segment_ids = (torch.tensor([s.document for s in side]) for side in (queries, keys))
        q_segment_ids, k_segment_ids = segment_ids if self.packed else (None, None)
        out, _ = plain.attention(
            q, k, v, parts, q_positions, k_positions, causal=True, q_segment_ids=q_segment_ids, k_segment_ids=k_segment_ids,
            x=x, **self.settings,
        )  # fmt: skip
        return out if self.layer is None else out.transpose(0, 1).flatten(1) @ self.tensors["out.weight"].T

    def embed(self, slots, positions, parts):
        """The layer input of some tokens."""
        x = torch.stack([self.chunks[s.chunk]["x"][s.row, s.place] for s in slots])
        for part in parts:
            x = x if part.embed is None else x + part.embed(positions)
        return x

    def project(self, name, slots, positions, parts):
        x = self.embed(slots, positions, parts)
        heads = self.heads if name == "queries" else self.groups
        return (x @ self.tensors[f"{name}.weight"].T).reshape(len(slots), heads, -1).transpose(0, 1)

    # --- the other operations ------------------------------------------------------------------------------------------
    def crop(self):
        length = self.rng.randint(0, self.cache.seq_length)
        self.log.append(f"crop({length})")
        if self.kind == "sliding" and length < self.cache.seq_length - self.rollback:
            try:
                self.cache.crop(length)
            except WhenceError:
                self.log.append("   refused")
                return
        else:
            self.cache.crop(length)
        self.rows = [row[:length] for row in self.rows]
        self.has_documents = self.has_documents and length > 0
        assert self.cache.seq_length == length

    def reorder(self):
        index = [self.rng.randrange(len(self.rows)) for _ in range(self.rng.randint(1, 4))]
        if self.cache.seq_length == 0:
            return
        self.log.append(f"reorder({index})")
        self.cache.reorder(torch.tensor(index))
        self.rows = [list(self.rows[i]) for i in index]

    def try_and_restore(self):
        """Some tokens that are taken back."""
        mark, rows, has_documents = self.cache.mark(), copy.copy(self.rows), self.has_documents
        rows = [list(row) for row in rows]
        self.log.append("mark()")
        for _ in range(self.rng.randint(1, 2)):
            self.extend()
        if self.rng.random() < 0.3:
            self.reorder()
        self.cache.restore(mark)
        self.log.append("restore()")
        self.rows, self.has_documents = rows, has_documents

    def reset(self):
        self.log.append("reset()")
        self.cache.reset()
        self.rows = (
            [[] for _ in range(self.rng.randint(1, 3))] if self.kind != "preallocated" else [[] for _ in self.rows]
        )
        self.has_documents = False

    def refuse(self):
        """A call that must not run leaves no tokens behind."""
        self.log.append("a call without causal=True, refused")
        x = torch.zeros(len(self.rows), self.heads, 1, self.dim, dtype=torch.float64)
        with pytest.raises(WhenceError):
            attend(x, x, x, cache=self.cache)
        assert self.cache.seq_length == len(self.rows[0])

    def run(self):
        self.extend()
        for _ in range(self.rng.randint(2, 7)):
            step = self.rng.choice(
                [self.extend] * 6 + [self.crop, self.crop, self.reorder, self.reorder, self.try_and_restore, self.refuse]
                + [self.reset] * (self.rng.random() < 0.3)
            )  # fmt: skip
            step()

    def compare_gradients(self):
        __tracebackhide__ = True
        leaves = {f"{name} of chunk {i}": t for i, chunk in enumerate(self.chunks) for name, t in chunk.items()}
        ours = torch.autograd.grad(self.total, [*leaves.values(), *self.parameters.values()], allow_unused=True)
        theirs = torch.autograd.grad(self.expected, [*leaves.values(), *self.state.values()], allow_unused=True)
        for name, got, wanted in zip([*leaves, *self.parameters], ours, theirs, strict=True):
            got, wanted = (torch.zeros(()) if g is None else g for g in (got, wanted))
            require_close(f"gradient of {name}", got, wanted, self)


def require_close(name, got, wanted, about):
    __tracebackhide__ = True
    error = (got - wanted).abs().max().item()
    if not error <= 1e-9 * max(1.0, wanted.abs().max().item()):  # so written, NaN fails too
        pytest.fail(f"{name} is off by {error:.3g}\n{about}")


def test_a_history(history_case, request):
    if history_case % 2:
        request.getfixturevalue("small_tiles")
    past = History(history_case)
    try:
        with torch.set_grad_enabled(past.learns):
            past.run()
    except Exception as error:
        error.add_note(str(past))
        raise
    if past.learns and past.total.requires_grad:  # there was a real token
        past.compare_gradients()


@pytest.mark.parametrize(
    ("positions", "segment_ids"),
    [([0.0, 0.5, 1.0], None), ([0, 0, 0], [0, 0, 0]), ([0, 0, 1], [0, 1, 0])],
    ids=["less than 1 apart", "repeated in a document", "a document taken up again"],
)
def test_a_sliding_cache_refuses_tokens_that_crowd_its_window(positions, segment_ids):
    # it forgets by count, so the key of the first token is gone although the last query's window still holds it
    x, cache = torch.randn(1, 1, 3, 2), KVCache(window=2)

    def decode():
        for i in range(3):
            token = x[:, :, i : i + 1]
            about = {} if segment_ids is None else {"segment_ids": torch.tensor(segment_ids[i : i + 1])}
            attend(token, token, token, causal=True, window=2, cache=cache, q_positions=torch.tensor(positions[i : i + 1]), **about)  # fmt: skip

    with pytest.raises(WhenceError, match=r"KVCache\(\)"):
        decode()


def test_a_sliding_cache_counts_from_0_after_padding_with_explicit_positions():
    x, cache = torch.randn(1, 1, 1, 2), KVCache(window=4)
    attend(x, x, x, causal=True, window=2, cache=cache, key_mask=torch.tensor([[False]]), q_positions=torch.tensor([3]))
    out = attend(x, x, x, causal=True, window=2, cache=cache)
    torch.testing.assert_close(out, x)


def test_padding_in_a_continued_document():
    x, y, cache = torch.randn(1, 1, 2, 2), torch.randn(1, 1, 3, 2), KVCache()
    attend(x, x, x, causal=True, cache=cache, segment_ids=torch.tensor([1, 1]))
    out = attend(y, y, y, causal=True, cache=cache, key_mask=torch.tensor([[False, True, True]]))
    whole = torch.cat([x, y[:, :, 1:]], 2)
    torch.testing.assert_close(out[:, :, 1:], attend(whole, whole, whole, causal=True)[:, :, 2:])
