"""``python -m whence`` is the command ``whence``, for launchers that start a module."""

from whence.cli.app import run

if __name__ == "__main__":
    run()
