"""The state of a tf_keras model that all ranks share; what is done with it is told in `keras3.state`."""

import tensorflow as tf

from matexrun.inject import gradients, replicas
from matexrun.inject.keras3 import state as keras3

rollback = keras3.rollback


def weights(model, kind: str = "weights") -> list:
    """`model.weights` or another of its lists of variables, without those of metrics; none before it is built."""
    from tf_keras.src.metrics.base_metric import Metric

    try:
        found = getattr(model, kind)
    except ValueError:  # tf_keras: weights have not yet been created
        return []
    layers = [*model.metrics, *(layer for layer in model._flatten_layers() if isinstance(layer, Metric))]
    of_metrics = {id(variable) for metric in layers for variable in metric.variables}
    return [variable for variable in found if id(variable) not in of_metrics]


def optimizer_variables(model) -> list:
    """The variables of the model's optimizer, or of each in a structure of them; None has none."""
    return [variable for one in tf.nest.flatten(model.optimizer) for variable in gradients.variables_of(one)]


def synchronise(model) -> None:
    """Give every rank rank 0's weights and optimizer state. Collective. Raises ContractError where models differ."""
    replicas.make_equal([*weights(model), *optimizer_variables(model)])


def trained(model) -> list:
    """What every update must leave equal on all ranks: trainable weights and the optimizer's variables."""
    return [*weights(model, "trainable_weights"), *optimizer_variables(model)]


def settle(model) -> None:
    """Make the weights that no optimizer updates equal on all ranks again: BatchNormalization's moving statistics are
    averaged. Collective."""
    replicas.settle(weights(model, "non_trainable_weights"))


def snapshot(model) -> list:
    """[(variable, its value now)] of the weights that a forward pass may change by itself."""
    return [(v, tf.convert_to_tensor(v)) for v in weights(model, "non_trainable_weights")]
