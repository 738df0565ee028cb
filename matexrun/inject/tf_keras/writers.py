"""Files of tf_keras are written once, by rank 0, and are complete before any rank goes on."""

from matexrun.inject import patching
from matexrun.inject.keras3 import writers as keras3
from matexrun.inject.tf_keras import state


def patch() -> None:
    """Patch the public ways to save a model (HDF5, .keras, SavedModel, weights of each kind), BackupAndRestore's files,
    and get_file."""
    from tf_keras.src.distribute.worker_training_state import WorkerTrainingState
    from tf_keras.src.engine.training import Model
    from tf_keras.src.saving import saving_api
    from tf_keras.src.utils import data_utils

    for function in (saving_api.save_model, saving_api.save_weights):
        patching.check_signature(function, ("model", "filepath"))
        patching.everywhere(function, keras3.saves(function, state.settle), "tf_keras")

    @patching.method(Model, "export", ("filepath",))
    def export(original, self, *args, **kwargs):
        return keras3.saves(original, state.settle)(self, *args, **kwargs)

    @patching.method(WorkerTrainingState, "back_up", ("epoch", "batch"))
    def back_up(original, self, *args, **kwargs):
        """Its tf.train.CheckpointManager writes once (`inject.files.checkpoints`), and all ranks must know what."""
        state.settle(self._model)
        return original(self, *args, **kwargs)

    patching.check_signature(data_utils.get_file, ("fname", "origin"))
    patching.everywhere(data_utils.get_file, keras3.downloads(data_utils.get_file), "tf_keras")
