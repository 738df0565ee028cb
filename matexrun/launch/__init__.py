"""The launcher side: from options to a running job. Imports neither TensorFlow nor MPI, nor the rank side."""
