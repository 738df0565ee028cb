"""What a script does for certain, read from its text."""

import pytest

from matexrun.launch.scan import scan

TF = "import tensorflow as tf\n"  # the first line of every script here

STRATEGIES = {
    "as people write it": (
        "strategy = tf.distribute.MirroredStrategy()\nwith strategy.scope():\n    pass\n",
        [2],
    ),
    "in main": (
        "def main():\n    s = tf.distribute.MultiWorkerMirroredStrategy()\nif __name__ == '__main__':\n    main()\n",
        [3],
    ),
    "in a function handed on": (
        "from absl import app\ndef main(argv):\n    tf.distribute.experimental.CentralStorageStrategy()\n"
        "app.run(main)\n",
        [4],
    ),
    "in a method": (
        "class Trainer:\n    def __init__(self):\n        self.s = tf.distribute.TPUStrategy(None)\nTrainer()\n",
        [4],
    ),
    "in a with statement": (
        "with tf.distribute.MirroredStrategy(['GPU:0']).scope():\n    pass\n",
        [2],
    ),
    "through from imports": ("from tensorflow.distribute import MirroredStrategy as MS\ns = MS()\n", [3]),
    "through the distribute module": (
        "from tensorflow import distribute as d\ns = d.OneDeviceStrategy('CPU:0')\n",
        [3],
    ),
    "through compat.v1": ("import tensorflow.compat.v1 as tf\ns = tf.distribute.MirroredStrategy()\n", [3]),
    "twice": (
        "a = tf.distribute.MirroredStrategy()\nb = tf.distribute.TPUStrategy()\n",
        [2, 3],
    ),
}


@pytest.mark.parametrize("source, lines", STRATEGIES.values(), ids=STRATEGIES)
def test_a_strategy_that_is_built_is_found(source, lines):
    found = scan(TF + source, "train.py").findings
    assert [finding.line for finding in found] == lines
    assert "Strategy(...)" in found[0].what or "MS(...)" in found[0].what
    assert "delete the strategy and its `with ...scope():`" in found[0].advice


@pytest.mark.parametrize(
    "source",
    [
        "import horovod.tensorflow as hvd\nhvd.init()\n",
        "import horovod.keras\n",
        "from horovod import keras as hvd\n",
        "from horovod.tensorflow import init\n",
    ],
)
def test_horovod_is_found(source):
    (found,) = scan(TF + source, "train.py").findings
    assert found.line == 2 and "horovod" in found.what and "delete" in found.advice


HARMLESS = {
    "comment": "# strategy = tf.distribute.MirroredStrategy()\n",
    "string": "print('tf.distribute.MirroredStrategy()', 'import horovod')\n",
    "name only": "kind = tf.distribute.MirroredStrategy\nisinstance(3, tf.distribute.Strategy)\n",
    "the current strategy": "s = tf.distribute.get_strategy()\ns.num_replicas_in_sync\n",
    "somebody else's": "from trading import distribute, MirroredStrategy\ndistribute.Strategy()\nMirroredStrategy()\n",
    "not imported": "def f(library):\n    return library.distribute.MirroredStrategy()\nf(None)\n",
    "in a branch": "import sys\nif len(sys.argv) > 5:\n    s = tf.distribute.MirroredStrategy()\n",
    "else branch": "if 1:\n    pass\nelse:\n    s = tf.distribute.MirroredStrategy()\n",
    "either or": "s = tf.distribute.MirroredStrategy() if 0 else tf.distribute.get_strategy()\n",
    "and": "s = False and tf.distribute.MirroredStrategy()\n",
    "in a function that nobody calls": "def f():\n    return tf.distribute.MirroredStrategy()\n",
    "called in a branch": ("def f():\n    return tf.distribute.MirroredStrategy()\nif 0:\n    f()\n"),
    "attempted": ("try:\n    s = tf.distribute.TPUStrategy(None)\nexcept ValueError:\n    s = None\n"),
    "optional horovod": "try:\n    import horovod.tensorflow as hvd\nexcept ImportError:\n    hvd = None\n",
    "a relative module of that name": "from .horovod import thing\n",
    "lambda": "f = lambda: tf.distribute.MirroredStrategy()\n",
}


@pytest.mark.parametrize("source", HARMLESS.values(), ids=HARMLESS)
def test_what_need_not_happen_is_left_to_the_ranks(source):
    assert scan(TF + source, "train.py").findings == ()


@pytest.mark.parametrize(
    "source, backend",
    [
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\n", "jax"),
        ("from os import environ\nenviron['KERAS_BACKEND'] = 'torch'\n", "torch"),
        ("import os\nos.environ.setdefault('KERAS_BACKEND', 'tensorflow')\n", "tensorflow"),
        ("import os\nos.environ['OTHER'] = 'jax'\n", None),
        ("import os\nd = {}\nd['KERAS_BACKEND'] = 'jax'\n", None),
        ("import os\nif os.environ.get('X'):\n    os.environ['KERAS_BACKEND'] = 'jax'\n", None),
        ("import os\nos.environ['KERAS_BACKEND'] = os.environ['B']\n", None),
    ],
)
def test_the_backend_that_a_script_sets(source, backend):
    assert scan(source, "train.py").keras_backend == backend


def test_what_is_not_python_is_a_syntax_error_and_escapes_are_quiet(recwarn):
    with pytest.raises(SyntaxError):
        scan("x = = 3\n", "train.py")
    scan("x = '\\d'\n", "train.py")
    assert not recwarn.list
