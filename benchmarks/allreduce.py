"""The price of reducing gradients inside TensorFlow: ResNet-50's 161 tensors (102 MB), against mpi4py alone.

    python benchmarks/allreduce.py [--ranks 2] [--rounds 15]      starts its own ranks, each pinned to one core

Every round measures each variant once, so that a noisy machine disturbs all alike; a round's time is that of its
slowest rank. Printed are medians, the range of the middle half, and ratios to the two loops over mpi4py.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

MIB = 1 << 20


def resnet50_shapes() -> list[tuple[int, ...]]:
    """Shapes of ResNet-50's trainable variables in forward order: convolutions without bias, each with a batch
    normalization (gamma, beta), and the classifier; 161 tensors, 25,557,032 elements.
    """
    shapes: list[tuple[int, ...]] = []

    def convolution(size: int, inputs: int, outputs: int) -> None:
        shapes.extend([(size, size, inputs, outputs), (outputs,), (outputs,)])

    convolution(7, 3, 64)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(1, inputs, width)
            convolution(3, width, width)
            convolution(1, width, 4 * width)
            if block == 0:  # the shortcut changes the number of channels
                convolution(1, inputs, 4 * width)
            inputs = 4 * width
    return [*shapes, (inputs, 1000), (1000,)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bucket-mb", type=float, default=4.0)
    parser.add_argument("--chunk-mb", type=float, default=4.0)
    arguments = parser.parse_args()
    if "PMI_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ:
        measure(arguments)
        return 0
    mpiexec = pathlib.Path(sys.executable).with_name("mpiexec")
    command = [str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", str(arguments.ranks), sys.executable, *sys.argv]
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}).returncode


def measure(arguments: argparse.Namespace) -> None:
    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})  # before TensorFlow makes its threads

    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    from matexrun.collectives import world
    from matexrun.settings import Settings

    settings = Settings("benchmark", arguments.ranks, 0, bucket_mb=arguments.bucket_mb, chunk_mb=arguments.chunk_mb)
    ranks = world.init(arguments.ranks, settings)
    from mpi4py import MPI

    from matexrun.collectives import ops

    comm = MPI.COMM_WORLD
    shapes = resnet50_shapes()
    arrays = [np.full(shape, rank + 1, np.float32) for shape in shapes]
    outs = [np.zeros_like(array) for array in arrays]
    flats = [np.zeros(array.size, np.float32) for array in arrays]
    tensors = [tf.constant(array) for array in arrays]
    chunk = int(arguments.chunk_mb * MIB) // 4

    def raw_in_place() -> None:
        for flat in flats:
            for start in range(0, flat.size, chunk):
                comm.Allreduce(MPI.IN_PLACE, flat[start : start + chunk])

    def raw_out_of_place() -> None:
        for array, out in zip(arrays, outs, strict=True):
            comm.Allreduce(array, out)

    def function(jit: bool, reduce: bool):
        @tf.function(jit_compile=jit)
        def step(gradients, scale):
            gradients = [gradient * scale for gradient in gradients]  # as the end of backpropagation would make them
            return ops.allreduce(gradients, ops.Order(), kind="gradients") if reduce else gradients

        return lambda: step(tensors, tf.constant(1.0))[-1].numpy()

    variants = {
        "mpi4py alone, in place, in chunks": raw_in_place,
        "mpi4py alone, out of place": raw_out_of_place,
        "gradients only, tf.function": function(False, False),
        "gradients + allreduce, tf.function": function(False, True),
        "gradients only, jit_compile=True": function(True, False),
        "gradients + allreduce, jit_compile=True": function(True, True),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(arguments.rounds + 2):
        for name, run in variants.items():
            comm.Barrier()
            start = time.perf_counter()
            run()
            elapsed = comm.allreduce(time.perf_counter() - start, MPI.MAX)
            if number >= 2:  # the first rounds trace, compile and touch memory
                times[name].append(elapsed)
    if rank == 0:
        report(times, sum(array.nbytes for array in arrays), len(arrays), arguments)
    ranks.finish()


def report(times: dict[str, list[float]], size: int, count: int, arguments: argparse.Namespace) -> None:
    print(f"{count} tensors, {size / 1e6:.0f} MB, {arguments.ranks} ranks, {arguments.rounds} rounds")
    print(f"{'':42s}{'median':>10s}{'middle half':>20s}")
    for name, values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        print(f"{name:42s}{median * 1e3:7.1f} ms{low * 1e3:11.1f} .. {high * 1e3:.1f}")
    in_place, out_of_place = list(times.values())[:2]
    print("ratio to mpi4py alone, round by round:                 in place               out of place")
    for mode in ("tf.function", "jit_compile=True"):
        whole = times[f"gradients + allreduce, {mode}"]
        net = [a - b for a, b in zip(whole, times[f"gradients only, {mode}"], strict=True)]
        for name, values in ((f"{mode}, all of it", whole), (f"{mode}, less the gradients", net)):
            print(f"  {name:40s}{ratio(values, in_place):>22s}{ratio(values, out_of_place):>22s}")


def ratio(values: list[float], raw: list[float]) -> str:
    """Median and middle half of the ratios of two measurements in the same round."""
    low, median, high = statistics.quantiles((a / b for a, b in zip(values, raw, strict=True)), n=4)
    return f"{median:.2f} ({low:.2f}..{high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
