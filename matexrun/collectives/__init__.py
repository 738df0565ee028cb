"""Communication between ranks. Reads settings and errors; knows nothing of what is patched into TensorFlow or Keras.

world       start and end of MPI, rank and size, collectives on NumPy arrays and Python objects
ops         the same as TensorFlow operations (eager, tf.function, jit clusters, loops, v1 graphs)
channel     one lane of collectives, which checks that all ranks are in the same one
watch       reports long waits to the launcher
plan        how tensors are cut and packed (pure)      reduction   sums flat arrays by a plan
calls       one collective of the runtime              handlers    from XLA's buffers to a call
ffi         XLA's C interface through ctypes           module      the StableHLO text of a custom call
fallback    the same through tf.numpy_function
"""
