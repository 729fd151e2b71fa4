"""``python -m whence.hf FILE...``: convert a GGUF file, or the one in wheels, into the cache, and print the folder."""

from __future__ import annotations

import sys
from pathlib import Path

from whence.errors import WhenceError
from whence.hf.gguf import convert, convert_wheels

if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:]]
    wheels = [path for path in paths if path.suffix == ".whl"]
    if not paths or (len(paths) > 1 and len(wheels) < len(paths)):
        sys.exit("usage: python -m whence.hf FILE, where FILE is a GGUF file, a wheel, or all wheels of one model")
    try:
        print(convert_wheels(wheels) if wheels else convert(paths[0]))
    except WhenceError as error:
        sys.exit(str(error))
