"""usage: python any_order.py OUT: pipelines that may give elements in any order; prints whether they came in order."""

import time

import numpy as np
import tensorflow as tf


def slow(number):
    time.sleep(np.random.default_rng(time.time_ns()).uniform(0, 0.02))
    return number


def later(number):
    return tf.numpy_function(slow, [number], tf.int64)


if __name__ == "__main__":
    options = tf.data.Options()
    options.deterministic = False
    numbers = tf.data.Dataset.range(32)
    for data in (
        numbers.map(later, num_parallel_calls=8, deterministic=False),
        numbers.map(later, num_parallel_calls=8).with_options(options),
    ):
        print([int(number) for number in data] == list(range(32)))
