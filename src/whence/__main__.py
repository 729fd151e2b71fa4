"""``python -m whence`` is the command ``whence``, for launchers that start a module."""

from whence.cli import main

if __name__ == "__main__":
    main()
