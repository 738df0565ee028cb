"""Python imports this before the user's script, because the worker put this folder first in PYTHONPATH. No logic here:
an error in a sitecustomize is printed and the script still runs, so a failure to activate must end the process."""

try:
    from matexrun import inject

    inject.activate()
except BaseException:
    import os
    import traceback

    traceback.print_exc()
    os._exit(1)
