"""--scale-lr: updates use the script's learning rate times the number of ranks, or its square root.

Only updates: what the script sets, schedules, reads, logs or lowers on a plateau are its own numbers, and each of them
is multiplied where an optimizer uses it. So nothing is multiplied twice, whoever changes the rate and when.
"""

import math
import weakref

import tensorflow as tf

from matexrun import reports
from matexrun.inject import lifecycle, patching
from matexrun.inject.keras3 import optimizer

_told = weakref.WeakSet()


def patch() -> None:
    """Patch BaseOptimizer._get_current_learning_rate, from which updates and weight decay have the rate (Keras 3.10 and
    3.15)."""
    job = lifecycle.job()
    if job.scale_lr == "none":
        return
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    factor = float(job.size) if job.scale_lr == "linear" else math.sqrt(job.size)

    @patching.method(BaseOptimizer, "_get_current_learning_rate", ())
    def current(original, self):
        rate = original(self)
        if not optimizer.applying():
            return rate
        if lifecycle.rank() == 0 and self not in _told:
            _told.add(self)
            within = f" within {job.warmup_steps} updates" if job.warmup_steps else ""
            reports.send("note", message=f"the learning rate of {self.name} is multiplied by {factor:.6g}{within}")
        rate = tf.convert_to_tensor(rate)
        return rate * tf.cast(_factor(factor, self.iterations, job.warmup_steps), rate.dtype)


def _factor(last: float, updates, warmup: int):
    """From 1 at the first update linearly to `last` after `warmup` updates. updates: how many there were."""
    if not warmup:
        return last
    done = tf.cast(tf.convert_to_tensor(updates), tf.float32) / warmup
    return 1.0 + (last - 1.0) * tf.minimum(done, 1.0)
