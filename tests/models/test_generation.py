"""Beam search against exhaustive search and greedy search; caches follow the beams; padded prompts equal unpadded ones."""

import itertools
import math

import pytest
import torch
from small_models import VOCABULARY, assert_same, decoder, tokens
from test_encoder_decoder import encoder_decoder

from whence import Epar, Rotary, WhenceError

END = 2


@torch.no_grad()
def score(model, source, targets):
    """The sum of the log-probabilities of each of some targets of one length, without a cache."""
    sequences = torch.cat([torch.zeros(len(targets), 1, dtype=torch.long), torch.tensor(targets)], 1)
    logp = model(source.expand(len(targets), -1), sequences[:, :-1]).log_softmax(-1)
    return logp.gather(2, sequences[:, 1:, None]).sum((1, 2)).tolist()


def small_model(seed=0):
    """Five tokens with wide logits, and attention that outweighs the last token, so that sources and hypotheses differ clearly."""
    torch.manual_seed(seed)
    model = encoder_decoder(Rotary(), Epar(), layers=1)
    layer = model.decoder.decoder_layers()[0]
    for attention in (layer.attention, layer.cross_attention):
        attention.out.weight.data *= 8
        attention.queries.weight.data *= 8
    model.output.weight.data = torch.randn(5, model.spec.embed_dim).double() / 4
    model.output.bias.data = torch.zeros(5).double()
    return model


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.5, -1.0])
def test_a_wide_beam_finds_the_best_of_all_targets(length_penalty):
    model, source = small_model(), tokens(batch=1, length=4)
    best, rank = None, -math.inf
    for length in (1, 2, 3):
        all_targets = itertools.product(range(5), repeat=length)
        targets = [one for one in all_targets if END not in one[:-1] and (length == 3 or one[-1] == END)]
        for target, total in zip(targets, score(model, source, targets), strict=True):
            if total / length**length_penalty > rank:
                best, rank = target, total / length**length_penalty
    arguments = {"bos_token_id": 0, "eos_token_id": END, "length_penalty": length_penalty}
    found = model.beam_search(source, 3, num_beams=100, **arguments)
    assert tuple(found[0].tolist()) == best


@pytest.mark.parametrize("end", [None, END])
def test_one_beam_is_greedy_search(end):
    for seed in range(4):
        model, source = small_model(seed), tokens(batch=3, length=4, seed=seed)
        mask = torch.arange(4).lt(torch.tensor([[4], [2], [3]]))
        greedy = model.generate(source, 6, bos_token_id=0, eos_token_id=end, source_mask=mask, temperature=0)
        beam = model.beam_search(source, 6, bos_token_id=0, eos_token_id=end, source_mask=mask, num_beams=1)
        assert torch.equal(beam, greedy)


@torch.no_grad()
def search_without_caches(model, source, length, beams):
    """Beam search by lists: every hypothesis is computed from its beginning."""
    beam = [((), 0.0)]
    for _ in range(length):
        candidates = [one for one in beam if one[0] and one[0][-1] == END]
        for text, total in (one for one in beam if one not in candidates):
            logp = model(source, torch.tensor([[0, *text]]))[0, -1].log_softmax(-1).tolist()
            candidates += [((*text, token), total + own) for token, own in enumerate(logp)]
        beam = sorted(candidates, key=lambda one: -one[1] / len(one[0]))[:beams]
    return list(beam[0][0])


@pytest.mark.parametrize("seed", range(3))
def test_caches_follow_the_beams(seed):
    """Each row of a padded batch is what a search without caches finds for its source."""
    model = small_model(seed)
    source = tokens(batch=4, length=5, seed=seed)
    mask = torch.arange(5).ge(torch.tensor([[0], [2], [1], [3]]))
    arguments = {"bos_token_id": 0, "eos_token_id": END, "source_mask": mask}
    together = model.beam_search(source, 6, num_beams=3, **arguments)
    for row in range(4):
        alone = search_without_caches(model, source[row : row + 1, mask[row]], 6, 3)
        assert together[row].tolist() == alone + [END] * (together.shape[1] - len(alone))


def test_a_sample_depends_on_the_generator_and_ends():
    model, source = small_model(), tokens(batch=2, length=4)
    first, second, other = (
        model.generate(source, 8, bos_token_id=0, eos_token_id=END, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second) and not (first.shape == other.shape and torch.equal(first, other))
    for row in first.tolist():
        assert END not in row or set(row[row.index(END) :]) == {END}
    assert (
        model.generate(source, 0, bos_token_id=0).shape == (2, 0) == model.beam_search(source, 0, bos_token_id=0).shape
    )


def test_a_decoder_continues_left_padded_prompts():
    model = decoder(Rotary()).eval()
    short, prompt = tokens(batch=1, length=3), tokens(batch=2, length=5, seed=1)
    prompt[0, 2:] = short
    mask = torch.tensor([[False] * 2 + [True] * 3, [True] * 5])
    for search in (lambda *a, **k: model.generate(*a, temperature=0, **k), model.beam_search):
        both = search(prompt, 4, key_mask=mask)
        assert torch.equal(both[0, 2:], search(short, 4)[0]) and torch.equal(both[1], search(prompt[1:], 4)[0])
    assert torch.equal(model.beam_search(short, 4, num_beams=1), model.generate(short, 4, temperature=0))
    with pytest.raises(WhenceError, match=r"key_mask.*ends with padding in row 0.*pad prompts on the left"):
        model.generate(prompt, 1, key_mask=mask.flip(1))


def test_a_beam_of_a_decoder_ranks_whole_sequences():
    model = decoder(Rotary()).eval()
    prompt = tokens(batch=1, length=2)
    found = model.beam_search(prompt, 2, num_beams=VOCABULARY)
    first = model(prompt)[0, -1].log_softmax(-1)
    both = torch.stack(
        [
            first[token] + model(torch.cat([prompt, torch.tensor([[token]])], 1))[0, -1].log_softmax(-1)
            for token in range(VOCABULARY)
        ]
    )
    assert found[0, 2:].tolist() == [int(both.argmax()) // VOCABULARY, int(both.argmax()) % VOCABULARY]
    assert_same(both.logsumexp((0, 1)), torch.zeros((), dtype=torch.float64))
