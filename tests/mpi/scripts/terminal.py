"""What a script sees of its standard streams: `terminal.py FOLDER`."""

import pathlib
import sys

(pathlib.Path(sys.argv[1]) / "now").touch()
print(f"stdout is a terminal: {sys.stdout.isatty()}, stdin: {sys.stdin.buffer.read()}")
