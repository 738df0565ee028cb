"""Ranks that end their scripts at different times, after their last collective: `leaving.py FOLDER`."""

import pathlib
import sys
import time

from matexrun.inject import lifecycle

lifecycle.claim()
lifecycle.world().barrier()
(pathlib.Path(sys.argv[1]) / "now").touch()
time.sleep(2 * lifecycle.rank())
