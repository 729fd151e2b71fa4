"""Tasks on a user's own data: labelled texts, running text, and pairs of texts. ``whence compare --data`` builds them.

The split into training, validation and test parts depends on the data and ``split_seed`` alone, so all arms and training
seeds share it. The vocabulary comes from the training part. A row that cannot be used is an error that names its line, unless
``skip_bad_rows`` is set; then the record names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab.data import hub, text_files
from whence.lab.data.corpora import content_hash
from whence.lab.data.rows import report_bad_rows
from whence.lab.data.splits import describe_lengths
from whence.lab.data.tokenizers import PAD, TOKENS, ReservedTokenizer, WordTokenizer, build_tokenizer, token_unit
from whence.lab.tasks.base import Task, require_at_least
from whence.lab.tasks.classification import Classification, Items
from whence.lab.tasks.file_rows import Rows, load_table, require_same_data, sort_labels, unknown_share
from whence.lab.tasks.language_modelling import LanguageModelling
from whence.lab.tasks.packed_text import PackedText
from whence.lab.tasks.pairs import PairsTask, check_pair_settings


class LabelledFile(Classification):
    """Texts and labels from a table; `whence compare --data reviews.csv` builds it.

    Args:
        path: a CSV, TSV, JSON Lines or Parquet file, a folder with one table for each split, or ``hf:NAME``.
        text_column: the column with the texts.
        label_column: the column with the labels, numbers or words.
        split_column: the column that names the split of each row; without it a stratified split is made.
        split_seed: seed of that split.
        tokens: ``words``, ``bytes``, ``characters`` or the path of a ``tokenizer.json``.
        context: tokens of an input; longer texts are cut, shorter ones padded.
        words: largest vocabulary of words or characters.
        mask_padding: "keys" masks padding, "none" treats it as a token.
        skip_bad_rows: leave out rows that cannot be used; the record names them.
        sha256: the hash that the data must have, if it is not empty.
    """

    name = "labelled_file"

    def __init__(
        self,
        path: str,
        text_column: str = "text",
        label_column: str = "label",
        split_column: str = "",
        split_seed: int = 0,
        tokens: str = "words",
        context: int = 64,
        words: int = 10_000,
        mask_padding: str = "keys",
        skip_bad_rows: bool = False,
        sha256: str = "",
    ) -> None:
        require_at_least(self.name, "context", context, 1)
        _check_inputs(self.name, path, tokens, words, sha256)
        columns = {"--text-column": text_column, "--label-column": label_column, "--split-column": split_column or None}
        rows = Rows(
            load_table(path, columns), {"text": text_column}, label_column, split_column, split_seed, skip_bad_rows
        )
        classes = sort_labels(rows.labels)
        if len(classes) < 2:  # all other labels were left out
            got = f"{label_column!r} with {len(classes)} usable label in {len(rows.labels)} rows"
            raise usage_error("--label-column", got, "classification needs at least two labels", "name another column")
        inner = build_tokenizer(tokens, (example.texts[0] for example in rows.by_part["train"]), words)
        tokenizer = inner if isinstance(inner, WordTokenizer) else ReservedTokenizer(inner, [PAD])
        numbers = {label: number for number, label in enumerate(classes)}
        encoded = {part: [tokenizer.encode(e.texts[0]).tolist() for e in own] for part, own in rows.by_part.items()}
        items = {
            part: Items.from_texts(texts, [numbers[example.label] for example in rows.by_part[part]], context)
            for part, texts in encoded.items()
        }
        self.class_names = tuple(classes)
        hashed = [part for own in rows.by_part.values() for e in own for part in (*e.texts, e.label)]
        settings = _record_settings(path, tokens, words, split_column, split_seed, rows.bad_rows, hashed)
        settings |= {"classes": classes, "mask_padding": mask_padding}
        tests = {part: own for part, own in items.items() if part != "train"}
        self.validation = "validation" if "validation" in tests else None
        super().__init__(items["train"], tests, tokenizer, len(classes), mask_padding, settings)
        lengths = [len(text) for texts in encoded.values() for text in texts]
        self._facts = rows.facts(labels=True) | {
            "lengths": describe_lengths(lengths, context, token_unit(tokens)),
            "unknown": unknown_share(inner, encoded, 1),
            "tokens": _describe_tokens(tokens, tokenizer.size),
        }

    def describe_data(self) -> dict[str, Any]:
        return super().describe_data() | self._facts


class TextFile(LanguageModelling):
    """Running text; `whence compare --data book.txt` builds it.

    The last tenth of a text is the test part and the tenth before it the validation part. Of a folder, files whose names start
    with train, validation or test are these parts; of ten or more other files, whole files are held out by ``split_seed``.

    Args:
        path: a text file, a folder of them, a table with a column of texts, or ``hf:NAME``.
        text_column: the column with the texts, for a table.
        split_column: the column of a table that names the split of each row.
        split_seed: seed of the choice of held-out files.
        tokens: ``bytes``, ``words``, ``characters`` or the path of a ``tokenizer.json``.
        context: tokens of a training input.
        blocks: number of scored test blocks.
        words: largest vocabulary of words or characters.
        skip_bad_rows: leave out lines that are not UTF-8 and empty files; the record names them.
        sha256: the hash that the data must have, if it is not empty.
        lengths: lengths of the evaluation as multiples of the context; by default 1, 2, 4 and 8.
    """

    name = "text_file"

    def __init__(
        self,
        path: str,
        text_column: str = "",
        split_column: str = "",
        split_seed: int = 0,
        tokens: str = "bytes",
        context: int = 64,
        blocks: int = 128,
        words: int = 10_000,
        skip_bad_rows: bool = False,
        sha256: str = "",
        lengths: Sequence[int] | None = None,
    ) -> None:
        _check_inputs(self.name, path, tokens, words, sha256)
        if text_column or hub.is_hub_name(path):
            column = text_column or "text"
            columns = {"--text-column": column, "--split-column": split_column or None}
            corpus, unit = text_files.corpus_of_table(load_table(path, columns), column, split_column), "rows"
        else:
            corpus, unit = text_files.read_corpus(Path(path), split_seed), "lines"
        rule = "every row needs a text and a split" if split_column else "a text is UTF-8 and not empty"
        bad_rows = report_bad_rows(Path(path).name, corpus.bad, corpus.units, skip_bad_rows, rule)
        for part in ("train", "test"):
            if part not in corpus.parts:
                got = f"only {', '.join(corpus.parts) or 'empty parts'} in {Path(path).name} with {corpus.units} {unit}"
                remedy = f"add {'rows of' if split_column else 'a file whose name starts with'} {part}"
                if corpus.units < text_files.MIN_ROWS and not split_column and unit == "rows":
                    remedy = f"add rows: {text_files.MIN_ROWS} are needed, since a tenth of them is the test part"
                raise usage_error("--data", got, "there must be texts for training and for test", remedy)
        tokenizer = build_tokenizer(tokens, [corpus.parts["train"]], words)
        encoded = {part: tokenizer.encode(text) for part, text in corpus.parts.items()}
        hashed = [part for item in corpus.parts.items() for part in item]
        settings = _record_settings(path, tokens, words, split_column, split_seed, bad_rows, hashed)
        self.unit = token_unit(tokens).removesuffix("s") if tokens in TOKENS else "token"
        validation = encoded.get("validation")
        how = corpus.how
        if validation is not None and len(validation) <= context:
            validation = None
            how += f"; the validation part is shorter than the context of {context} and is not used"
        super().__init__(encoded["train"], encoded["test"], tokenizer, context, blocks, settings, validation, lengths)
        unknown = {part: [stream.tolist()] for part, stream in encoded.items()}
        self._facts = {
            "split": how,
            "bad_rows": bad_rows,
            "files": corpus.files,
            "ignored_files": corpus.ignored,
            "notes": corpus.notes,
            "unknown": unknown_share(tokenizer, unknown, 1),
            "repeated_lines": text_files.describe_repeated_lines(corpus.parts),
        }

    def describe_data(self) -> dict[str, Any]:
        return super().describe_data() | self._facts


class PairsFile(PairsTask):
    """Pairs of texts, such as sentences and their translations; `whence compare --data pairs.jsonl --source-column en
    --target-column de` builds it.

    A decoder reads the source, a separator and the target, and predicts the target and its end:

        a man sleeps <sep> ein mann schläft      targets from the separator on:  ein mann schläft <end>

    With ``architecture="encoder-decoder"`` an encoder reads the source, and the decoder begins with the separator.

    Only the target is scored: perplexity per token by default, and with ``metric="accuracy"`` the share of target tokens that are
    predicted correctly after the correct preceding ones. With ``translations`` the sources of that many pairs are also
    translated, and ``metric="bleu"`` or ``"chrf"`` scores the results. Position matters because words of the target align with
    words of the source at changing distances. Both texts share one vocabulary.

    A pair that is longer than the context is cut: the target keeps at least half of the context.

    Args:
        path: a CSV, TSV, JSON Lines or Parquet file, a folder with one table for each split, or ``hf:NAME``.
        source_column: the column with the source texts.
        target_column: the column with the target texts.
        split_column: the column that names the split of each row; without it a random split is made.
        split_seed: seed of that split. Equal sources are in one part.
        tokens: ``words``, ``bytes``, ``characters`` or the path of a ``tokenizer.json``.
        context: tokens of an input: source, separator and target; of each side for an encoder-decoder.
        words: largest vocabulary of words or characters.
        skip_bad_rows: leave out rows that cannot be used; the record names them.
        sha256: the hash that the data must have, if it is not empty.
        architecture: ``decoder`` or ``encoder-decoder``.
        cross_position: position in cross-attention: ``none``, or the ``same`` as in self-attention.
        translations: number of pairs of each split that are translated for BLEU and chrF; 0 for none.
        num_beams: beams of the translations and summaries; 1 is greedy search.
        summaries: number of pairs of each split that are summarized for ROUGE; 0 for none.
        target_context: tokens of a target; 0 for those of the context.
    """

    name = "pairs_file"

    def __init__(
        self,
        path: str,
        source_column: str = "source",
        target_column: str = "target",
        split_column: str = "",
        split_seed: int = 0,
        tokens: str = "words",
        context: int = 64,
        words: int = 10_000,
        skip_bad_rows: bool = False,
        sha256: str = "",
        architecture: str = "decoder",
        cross_position: str = "none",
        translations: int = 0,
        num_beams: int = 1,
        summaries: int = 0,
        target_context: int = 0,
    ) -> None:
        require_at_least(self.name, "target_context", target_context, 0)
        check_pair_settings(self.name, context, architecture, cross_position, translations, num_beams, summaries)
        _check_inputs(self.name, path, tokens, words, sha256)
        columns = {
            "--source-column": source_column,
            "--target-column": target_column,
            "--split-column": split_column or None,
        }
        texts = {"source": source_column, "target": target_column}
        rows = Rows(load_table(path, columns), texts, None, split_column, split_seed, skip_bad_rows)
        pairs = {part: [(e.texts[0], e.texts[1]) for e in own] for part, own in rows.by_part.items()}
        hashed = [text for own in pairs.values() for pair in own for text in pair]
        settings = _record_settings(path, tokens, words, split_column, split_seed, rows.bad_rows, hashed)
        super().__init__(
            pairs, tokens, context, words, architecture, cross_position, translations, num_beams, settings, summaries,
            target_context,
        )  # fmt: skip
        self._facts = rows.facts(labels=False) | self._facts


def _check_inputs(name: str, path: str, tokens: str, words: int, sha256: str) -> None:
    """Raise before the data are read if the vocabulary is too small or the data are not those of the study."""
    require_at_least(name, "words", words, 3)
    require_same_data(path, tokens, sha256)


def _record_settings(
    path: str,
    tokens: str,
    words: int,
    split_column: str,
    split_seed: int,
    bad_rows: dict[str, Any],
    hashed: Sequence[str],
) -> dict[str, Any]:
    """What every task on a file records about its data. ``hashed`` has all texts, in the order of the parts."""
    return {
        "file": Path(path).name, "tokens": token_unit(tokens), "words": words, "split_seed": split_seed,
        "split_column": split_column, "bad_rows": bad_rows, "data_hash": content_hash(hashed),
    }  # fmt: skip


def _describe_tokens(tokens: str, size: int) -> str:
    return f"{token_unit(tokens)}; a vocabulary of {size:,}"


FILE_TASKS: dict[str, type[Task]] = {task.name: task for task in (LabelledFile, TextFile, PairsFile, PackedText)}
