"""fit, evaluate and predict of a Keras model, from outside: equal ranks before, compared and settled ones after."""

from matexrun.inject import divergence, patching


def patch(model_class, state) -> None:
    """Patch the methods of `model_class`, Keras 3's trainer or tf_keras' Model.

    state: what is done with a model's variables, by that Keras: synchronise(model), trained(model), settle(model).
    """

    @patching.method(model_class, "fit", ("x", "y"))
    def fit(original, self, *args, **kwargs):
        state.synchronise(self)
        history = original(self, *args, **kwargs)
        divergence.assert_equal(state.trained(self), "at the end of training")
        state.settle(self)
        return history

    for name in ("evaluate", "predict"):

        @patching.method(model_class, name, ("x",))
        def with_statistics(original, self, *args, **kwargs):
            state.settle(self)
            return original(self, *args, **kwargs)
