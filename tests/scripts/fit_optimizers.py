"""Optimizers, and what they do to gradients besides applying them."""

import keras
from cases import BATCH, FEATURES, adam, case, fit, main, mlp, table
from rows import Rows


def compiled(jit, optimizer=None):
    model = mlp()
    model.compile(optimizer or adam(), "mse", jit_compile=jit)
    return model


@case
def gradient_accumulation(jit):
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3, gradient_accumulation_steps=3)
    return fit(compiled(jit, optimizer), *table(), batch_size=BATCH, epochs=3)


@case
def mixed_float16(jit):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [
                keras.Input((FEATURES + 1,)),
                Rows(name="rows"),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dense(1, dtype="float32"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], jit_compile=jit)
        results = fit(model, *table(), batch_size=BATCH)
        return {**results, "loss_scale": float(model.optimizer.dynamic_scale)}
    finally:
        keras.config.set_dtype_policy("float32")


@case
def loss_scale_that_overflows_on_one_rank(jit):
    """One row alone makes the gradient of its batch, times the first scale, too large for float32: that step is skipped
    on all ranks. Another makes that of its slice's own mean too large, but not that of the batch's: it is taken."""
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**127)
    x, y = table()
    y[[0, BATCH + 5]] += [[5], [1e4]]
    results = fit(compiled(jit, optimizer), x, y, batch_size=BATCH, shuffle=False)
    return {**results, "scale": float(optimizer.dynamic_scale), "updates": int(inner.iterations)}


@case
def global_clipnorm(jit):
    return fit(compiled(jit, keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.2)), *table(), batch_size=BATCH)


@case
def adamw_with_schedule_and_average(jit):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.8)
    averaged = {"use_ema": True, "ema_overwrite_frequency": 4}
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.02, epsilon=1e-3, **averaged)
    return fit(compiled(jit, optimizer), *table(), batch_size=BATCH)


@case
def two_models(jit):
    first, second = compiled(jit), compiled(jit, keras.optimizers.SGD(0.1, clipvalue=0.02))
    x, y = table()
    results = {"first": fit(first, x, y, batch_size=BATCH), "second": fit(second, x, -y, batch_size=11)}
    return {**results, "first again": fit(first, x, y, batch_size=BATCH)}


@case
def fine_tuning(jit):
    """A model that is trained on with another learning rate, and compiled again with a layer that stays as it is."""
    model = compiled(jit)
    first = fit(model, *table(), batch_size=BATCH)
    model.optimizer.learning_rate = 0.001
    slower = fit(model, *table(), batch_size=BATCH, initial_epoch=2, epochs=4)
    model.get_layer(index=1).trainable = False
    model.compile(keras.optimizers.SGD(0.05), "mae", jit_compile=jit)
    return {"first": first, "slower": slower, "frozen": fit(model, *table(), batch_size=BATCH)}


if __name__ == "__main__":
    main()
