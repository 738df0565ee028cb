"""TensorFlow 2.18 to 2.21, and three kinds of Keras beside each: docs/testing.md says how to run it."""

import nox

# The older Keras 3 is 3.10, or the oldest that a TensorFlow takes.
OLDER = {"2.18": "3.10", "2.19": "3.10", "2.20": "3.10", "2.21": "3.12"}
PAIRS = [
    nox.param(tensorflow, keras, id=f"{tensorflow}-{keras}")
    for tensorflow in OLDER
    for keras in ("newest", "older", "legacy")
]

nox.options.default_venv_backend = "venv"


@nox.session
@nox.parametrize(("tensorflow", "keras"), PAIRS)
def matrix(session, tensorflow, keras):
    """What depends on the insides of TensorFlow and Keras: with the newest Keras 3, an older one, or tf_keras."""
    keras3 = f"keras=={OLDER[tensorflow]}.*" if keras == "older" else "keras>=3"
    session.install(f"tensorflow-cpu=={tensorflow}.*", keras3, ".[mpich,test]")
    if keras == "legacy":  # what it depends on, the wheel `tensorflow`, would be installed over `tensorflow-cpu`
        session.install("--no-deps", f"tf_keras=={tensorflow}.*")
    session.run("python", "-m", "pip", "list")
    session.run("python", "-m", "pytest", "-m", "tf_keras" if keras == "legacy" else "matrix", *session.posargs)
