"""``whence tokenize``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from whence.cli.json_output import JsonOption, json_document

HELP = "Tokenise texts once, for `whence compare --data FOLDER` and pretraining."
EXAMPLES = """Examples:

whence tokenize texts/ --vocab-size 8192 --out tokens

whence compare --data tokens --context 256 --position rotary --position alibi

whence tokenize book.txt --document-start "CHAPTER " --out chapters

whence tokenize pages.jsonl --text-column content --out pages

whence tokenize fineweb --characters 500000000 --vocab-size 16384 --out fineweb

Sources: files (.txt, .md, .jsonl, .parquet and others, also as .gz or .xz), folders, hf:NAME or hf:NAME/CONFIG, or topics
(without a download), books (from WHENCE_DATA), wikitext103 and fineweb (streamed)."""


def tokenize(
    ctx: typer.Context,
    texts: Annotated[
        list[str], typer.Argument(help="Files, folders, Hugging Face datasets (hf:NAME) or named sources.")
    ],
    out: Annotated[Path, typer.Option(help="New folder for the tokens.")] = Path("tokens"),
    vocab_size: Annotated[int, typer.Option(help="Largest vocabulary of the byte-level BPE.")] = 8192,
    tokenizer: Annotated[str, typer.Option(help="A tokenizer.json to use instead of a new BPE.")] = "",
    text_column: Annotated[str, typer.Option(help="Column of tables and datasets with the texts.")] = "text",
    document_start: Annotated[
        str, typer.Option(help="Regular expression for the first line of each document. Default: a file is a document.")
    ] = "",
    characters: Annotated[int | None, typer.Option(help="Largest number of characters of training text.")] = None,
    held_out: Annotated[
        float, typer.Option(help="Share of the text for each of validation and test, if the sources name no parts.")
    ] = 0.05,
    split_seed: Annotated[int, typer.Option(help="Seed of the choice of held-out documents.", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    from whence.cli.progress import phase_progress
    from whence.lab.data.documents import DocumentOptions
    from whence.lab.data.prepare import PrepareSettings, prepare_tokens

    results = ctx.with_resource(json_document("tokenize", as_json))
    settings = PrepareSettings(vocab_size, tokenizer, held_out, split_seed, characters)
    with phase_progress() as progress:
        folder = prepare_tokens(texts, out, settings, DocumentOptions(text_column, document_start), progress)
    results.update(folder=out, identity=folder.identity, vocab_size=folder.manifest["vocab_size"], parts=folder.parts)
    for part, facts in folder.parts.items():
        print(f"{part}: {facts['documents']:,} documents, {facts['tokens']:,} tokens, {facts['bytes']:,} bytes of text")
    print(f"vocabulary: {folder.manifest['vocab_size']:,} tokens")
    asked = vocab_size if not tokenizer else 0
    if folder.manifest["vocab_size"] < asked:
        print(f"note: the training text has no pairs for all {asked:,} tokens of --vocab-size", file=sys.stderr)
    print(f"tokens: {out}")
