"""Every command with a wrong folder, an empty folder, a wrong name or a missing file: one line and exit code 2."""

import shlex
import sys

import pytest

from whence.cli import app


@pytest.mark.parametrize(
    "command, words",
    [
        ("show nonesuch", ["position 'nonesuch'", "did you mean"]),
        ("show ./nonesuch.py:Bell", ["./nonesuch.py:Bell", "check the path"]),
        ("show alibi --out empty", ["--out", "png"]),
        ("compare --task nonesuch", ["task 'nonesuch'", "module:Class"]),
        (
            "compare ./bell.py:Bell",
            ["whence compare got ./bell.py:Bell", "options alone", "write --position ./bell.py:Bell"],
        ),
        ("compare --seeds x", ["--seeds", "integer", "whence compare --help"]),
        ("mend ./nonesuch", ["whence mend ./nonesuch", "check the path"]),
        ("mend quick other", ["whence mend got other", "it takes model", "leave it out"]),
        ("bench --quick --benchmark squad --data . --dtype floaty", ["--dtype", "'floaty'", "bfloat16", "choose one"]),
        ("compare --data nonesuch.csv", ["--data", "nonesuch.csv", "check the path"]),
        ("compare --config nonesuch.toml", ["--config", "nonesuch.toml", "check the path"]),
        ("compare --baseline flurb", ["--baseline", "'flurb'", "--position"]),
        ("compare --out file.txt --task copy", ["--out", "file.txt", "name a folder"]),
        # a misspelt option is named first, whatever else is wrong
        ("compare --shard 5/4 --data nonesuch.csv", ["--shard", "'5/4'", "1/4"]),
        ("compare --sweep lrr=1,2 --data nonesuch.csv", ["--sweep", "lrr", "did you mean lr?"]),
        ("compare --until decide --data nonesuch.csv", ["--until", "'decide'", "--seeds"]),
        ("compare --budget 5 --data nonesuch.csv", ["--budget", "'5'", "20m"]),
        ("compare --lengths x --data nonesuch.csv", ["--lengths", "'x'", "1x,2x"]),
        ("compare --set layer=2 --data nonesuch.csv", ["--set", "layer", "did you mean layers?"]),
        ("run nonesuch --shard 0/4", ["--shard", "'0/4'", "1/4"]),
        ("run nonesuch.py", ["whence run", "nonesuch.py", "name a file.py"]),
        ("run nonesuch --folder nonesuch", ["--folder", "nonesuch", "check the path"]),
        ("run mine --folder studies --out file.txt", ["--out", "file.txt", "name a folder"]),
        ("run mine --folder studies --scale big", ["--scale", "'big'", "leave out --scale"]),
        ("studies --folder nonesuch", ["--folder", "nonesuch", "check the path"]),
        ("studies --folder empty", ["--folder", "empty", "check the path"]),
        ("report nonesuch", ["whence report", "no folder nonesuch", "name a folder"]),
        ("report empty", ["whence report", "empty", "name a folder"]),
        ("report empty nonesuch", ["whence report", "empty", "plan.json"]),
        ("probe empty", ["whence probe empty got", "config.json", "check the path"]),
        ("probe file.txt", ["whence probe file.txt got", "GGUF", "check the path"]),
        ("probe nonesuch.gguf", ["whence probe nonesuch.gguf got", "no such file", "check the path"]),
        ("probe --quick --score likelyhood", ["whence probe --score", "'likelyhood'", "did you mean likelihood?"]),
        ("probe --quick --out file.txt", ["--out", "file.txt", "name a folder"]),
        ("probe --quick --items nonesuch.jsonl", ["--items nonesuch.jsonl", "check the path"]),
    ],
)
def test_wrong_paths_and_names_give_one_line(command, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "mine.py").write_text("def studies():\n    return []\n")
    (tmp_path / "file.txt").write_text("text\n")
    monkeypatch.setattr(sys, "argv", ["whence", *shlex.split(command)])
    with pytest.raises(SystemExit) as end:
        app.run()
    printed = capsys.readouterr()
    # without a data folder the probe first says that it has one task less
    lines = [line for line in printed.err.splitlines() if not line.startswith("no questions over documents")]
    assert end.value.code == 2 and printed.out == "" and len(lines) == 1
    assert [word for word in words if word not in lines[0]] == []
