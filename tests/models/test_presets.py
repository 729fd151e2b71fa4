"""The sizes of the Qwen3-style presets. tests/hf compares the shape with the Qwen3 of transformers."""

from dataclasses import replace

from whence.models import PRESETS, ModelSpec, build, parameter_table, qwen3_20m, qwen3_134m


def count_parts(spec):
    """The parts of a model, from one with a single token and layer: each token and each layer counts the same."""
    table = parameter_table(build(replace(spec, vocab_size=1, layers=1)))
    rows, layer = dict(table.rows), {part.name: part.count for part in table.parts[1].inside[0].inside}
    rows |= {"embedding": rows["embedding"] * spec.vocab_size, "layers": rows["layers"] * spec.layers}
    return rows, layer, sum(rows.values())


def test_the_134m_model_is_composed_as_its_text_says():
    rows, layer, total = count_parts(qwen3_134m())
    assert round(total / 1e6) == 134 and total == 134_435_584  # the source prints 134M and no more
    assert rows == {"embedding": 151_936 * 512, "layers": 18 * 3_146_880, "final norm": 512}  # the output is tied
    assert layer == {
        "attention": 2 * 512 * 512 + 2 * 512 * 256,
        "query and key norm": 2 * 64,
        "feed-forward in": 512 * 1536,
        "feed-forward gate": 512 * 1536,
        "feed-forward out": 512 * 1536,
        "attention norm": 512,
        "feed-forward norm": 512,
    }


def test_presets_make_specs_of_any_vocabulary():
    assert count_parts(qwen3_20m())[2] == 20_454_784
    for name, settings in PRESETS.items():
        spec = ModelSpec("decoder", 100, **settings)
        assert spec in (qwen3_134m(100), qwen3_20m(100)) and f"{spec.layers}" and name.startswith("qwen3-")
