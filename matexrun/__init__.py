"""matexrun: run an unmodified TensorFlow/Keras script data-parallel on many MPI ranks."""

__version__ = "0.1.0"
