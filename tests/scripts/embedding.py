"""usage: python embedding.py OUT [--jit on] [--only NAME ...]: embeddings, of ids that come more than once in a batch.

A table of 100,000 rows, of which few are used, and a small one.
"""

import keras
import numpy as np
from cases import BATCH, adam, fit, main, table
from cases import case as embedding_case
from rows import Rows

LARGE, SMALL, WIDTH, WORDS = 100_000, 6, 16, 4


def trained(jit, optimizer):
    x, y = table()
    words = np.random.default_rng(2).integers(0, LARGE, (len(x), WORDS))
    words[:, :2] = words[:, :2] % SMALL  # so that rows meet, within a batch and across ranks
    inputs = keras.Input((WORDS + 1,))
    ids = Rows(name="rows")(inputs)
    large = keras.layers.Embedding(LARGE, WIDTH, name="large")
    small = keras.layers.Embedding(SMALL, WIDTH, name="small")
    both = keras.layers.Concatenate()([large(ids), small(ids % SMALL)])
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(both)))
    model.compile(optimizer, "mse", jit_compile=jit)
    before = large.embeddings.numpy()
    results = fit(model, np.column_stack([words, x[:, -1]]).astype("float32"), y, batch_size=BATCH)
    changes = large.embeddings.numpy() - before
    changed = np.flatnonzero(np.any(changes, 1))
    del results["weights"]
    weights = {"small": small.embeddings.numpy().tolist(), "large": changes[changed[:50]].tolist()}
    return {**results, "weights": weights, "changed": len(changed)}


@embedding_case
def sgd(jit):
    return trained(jit, keras.optimizers.SGD(0.1))


@embedding_case
def sgd_with_momentum(jit):
    return trained(jit, keras.optimizers.SGD(0.05, momentum=0.9))


@embedding_case
def sgd_with_clipping(jit):
    return trained(jit, keras.optimizers.SGD(0.1, global_clipnorm=0.05))


@embedding_case
def adam_of_keras(jit):
    return trained(jit, adam())


if __name__ == "__main__":
    main()
