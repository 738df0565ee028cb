"""What one rank does in tests/mpi/test_collectives.py: `mpiexec -n N python collectives_cases.py auto|numpy CASE...`.

One job runs many cases, since importing TensorFlow takes longer than any of them. A rank writes a line
`RESULT {"rank", "case", "error", "value"}` after each; `error` is null or a traceback.
"""

import hashlib
import json
import os
import sys
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from matexrun import ranks, settings
from matexrun.collectives import world
from matexrun.errors import CollectiveError

CASES = {}
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
INTEGERS = [tf.int32, tf.int64]
MODES = {"eager": None, "function": False, "jit": True}


def case(function):
    CASES[function.__name__] = function
    return function


def traced(mode, function):
    return function if mode == "eager" else tf.function(function, jit_compile=MODES[mode])


def modes():
    return [mode for mode in MODES if mode != "jit" or ops.supports_jit()]


def integers(shape, rank, seed=0):
    """Small whole numbers, exact in every dtype; another set on each rank, known to all."""
    return np.random.default_rng((seed, rank)).integers(-8, 9, shape)


def total(shape, seed=0, weights=None):
    return sum((1 if weights is None else weights[r]) * integers(shape, r, seed) for r in range(W.size))


def equal(got, want):
    got = got.numpy() if tf.is_tensor(got) else got  # NumPy can't convert a scalar bfloat16 tensor by itself
    np.testing.assert_array_equal(np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64))


def raises(error, match, function, *arguments):
    try:
        function(*arguments)
    except error as caught:
        assert match in str(caught), f"{match!r} is not in {caught}"
    else:
        raise AssertionError(f"no {error} with {match!r}")


@case
def sums_of_all_dtypes_and_sizes():
    def reduce(tensors, factor=None):
        return ops.allreduce(tensors, ops.Order(), factor)

    weights = [0.5 * (rank + 1) for rank in range(W.size)]
    for mode in modes():
        for shape in [(), (1,), (7, 3), (65536 + 1,), (1100, 1000)]:
            values = integers(shape, W.rank)

            tensors = [tf.constant(values, dtype) for dtype in FLOATS + INTEGERS]
            for result, dtype in zip(traced(mode, reduce)(tensors), FLOATS + INTEGERS, strict=True):
                assert result.dtype == dtype and result.shape == shape
                equal(result, total(shape))
            for kind in (tf.float32, tf.float64):
                results = traced(mode, reduce)(tensors[:4], tf.constant(weights[W.rank], kind))
                for result, dtype in zip(results, FLOATS, strict=True):
                    assert result.dtype == dtype
                    equal(result, total(shape, weights=weights))


@case
def half_precision_is_summed_in_float32():
    # 256 + 0.5 is 256 in bfloat16, whose next number is 258: summed there, the other ranks' shares would be lost.
    mine = 256.0 if W.rank == 0 else 2.0 / (W.size - 1) if W.size > 2 else 1.5
    for size in (1, 300_000):
        (result,) = ops.allreduce([tf.fill([size], tf.constant(mine, tf.bfloat16))], ops.Order())
        equal(result, np.full(size, 258.0))


@case
def many_tensors_in_one_call():
    rng = np.random.default_rng(5)
    shapes = [(3, 3, int(a), int(b)) if a % 2 else (int(a),) for a, b in rng.integers(1, 130, (161, 2))]
    dtypes = [(FLOATS + INTEGERS)[i % 6] for i in range(161)]
    for mode in modes():
        values = [integers(shape, W.rank, i) for i, shape in enumerate(shapes)]
        run = traced(mode, lambda tensors: ops.allreduce(tensors, ops.Order(), kind="gradients"))
        before = ops.counters()["gradients"]
        for _ in range(2):
            results = run([tf.constant(value, dtype) for value, dtype in zip(values, dtypes, strict=True)])
        assert ops.counters()["gradients"] == before + 2  # executions, not traces
        for i, (result, shape) in enumerate(zip(results, shapes, strict=True)):
            equal(result, total(shape, i))


@case
def ranks_hold_the_same_bits_and_repeat_them():
    values = np.random.default_rng(W.rank).normal(size=300_001).astype(np.float32)
    tensors = [tf.constant(values), tf.constant(values[:9])]
    results = [b"".join(r.numpy().tobytes() for r in ops.allreduce(tensors, ops.Order())) for _ in range(3)]
    assert len(set(results)) == 1
    assert len(set(W.allgather_object(results[0]))) == 1
    return hashlib.sha256(results[0]).hexdigest()  # compared between jobs


@case
def a_rank_with_factor_zero_adds_nothing():
    mine = [np.inf, np.nan] if W.rank == 0 else [1.0, 2.0]
    for mode in modes():
        for shape in (2, 200_000):
            tensor = tf.constant(np.resize(mine, shape), tf.float32)
            run = traced(mode, lambda tensor, factor: ops.allreduce([tensor], ops.Order(), factor))
            (result,) = run(tensor, tf.constant(float(W.rank != 0)))
            equal(result, np.resize([1.0, 2.0], shape) * (W.size - 1))
    slices = tf.IndexedSlices(tf.constant([mine]), tf.constant([W.rank]), tf.constant([9, 2]))
    gathered = ops.allgather_slices(slices, ops.Order(), tf.constant(float(W.rank != 0)))
    equal(gathered.values, [[0, 0]] + [[1, 2]] * (W.size - 1))


@case
def nobody_elses_memory_changes():
    """Results never appear in a tensor that is still read: an argument, a variable's value, an operand given twice."""
    for mode in modes():
        for size in (5, 300_000):
            values = integers(size, W.rank).astype(np.float32)
            variable = tf.Variable(values)
            argument = tf.constant(values)

            def step(x, variable=variable):
                read = variable.read_value()
                doubled = x + x
                once, twice, again, of_read, of_doubled = ops.allreduce([x, x, x, read, doubled], ops.Order())
                return x + 0.0, read + 0.0, doubled + 0.0, once, twice, again, of_read, of_doubled, x, read

            run = traced(mode, step)
            for _ in range(2):
                x, read, doubled, once, twice, again, of_read, of_doubled, same_x, same_read = run(argument)
                for kept in (x, read, same_x, same_read, argument, variable):
                    equal(kept, values)
                equal(doubled, 2 * values)
                for reduced in (once, twice, again, of_read):
                    equal(reduced, total(size))
                equal(of_doubled, 2 * total(size))
            # Results of the first run survive the second one.
            first = run(argument)
            kept = [tensor.numpy().copy() for tensor in first]
            variable.assign(variable * 3.0)
            run(argument + 1.0)
            for tensor, copy in zip(first, kept, strict=True):
                equal(tensor, copy)


@case
def loops_and_branches():
    for mode in modes():

        def steps(x, count):
            order = ops.Order()
            (start,) = ops.allreduce([x], order)

            def body(i, value):
                (value,) = ops.allreduce([value], order)
                value, extra = ops.allreduce([value, tf.ones([3])], order)
                return i + 1, value + 0.0 * extra[0]

            _, value = tf.while_loop(lambda i, _: i < count, body, (tf.constant(0), x))
            (after,) = ops.allreduce([value], order)
            both = tf.cond(count > 2, lambda: ops.allreduce([x * 2.0], order)[0], lambda: x)
            return start, after, both

        x = integers(4, W.rank).astype(np.float32)
        start, after, both = traced(mode, steps)(tf.constant(x), tf.constant(3))
        equal(start, total(4))
        equal(after, total(4) * W.size**6)
        equal(both, total(4) * 2)


@case
def one_order_serves_many_traces():
    order = ops.Order()
    for mode in modes():
        run = traced(mode, lambda x, order=order: ops.allreduce([x], order)[0])
        for size in (2, 3, 2):
            equal(run(tf.ones([size])), np.full(size, W.size))
    inner = tf.function(lambda x: ops.allreduce([x], order)[0])
    outer = tf.function(lambda x: inner(x) + ops.allreduce([x], order)[0])
    another = tf.function(lambda y: inner(y * 2.0))  # calls the function that was traced inside `outer`
    for function in (outer, another):
        equal(function(tf.ones([2])), np.full(2, 2 * W.size))


@case
def uneven_slices_in_one_cluster():
    """Ranks with slices of 1 and 8 rows under jit: XLA schedules their clusters differently, the token keeps order."""
    rows = 8 if W.rank == 1 else 1
    for mode in modes():

        @tf.function(jit_compile=MODES[mode] or False)
        def step(x, w):
            order, results = ops.Order(), []
            for layer in range(15):
                x = tf.tanh(tf.matmul(x, w)) + 1.0
                results += ops.allreduce([tf.fill([layer + 1], float(layer)) + 0.0 * tf.reduce_mean(x)], order)
                results += ops.allreduce([tf.reduce_sum(tf.ones_like(x)[:, 0])], order, kind="metrics")
            return results

        results = step(tf.ones([rows, 16]), tf.eye(16))
        for layer in range(15):
            equal(results[2 * layer], np.full(layer + 1, float(layer * W.size)))
            equal(results[2 * layer + 1], 8 + W.size - 1)


@case
def v1_graph_and_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [5])
        training, evaluation = ops.Order(), ops.Order()
        first = ops.allreduce([x], training, tf.constant(0.5), kind="gradients")[0]
        second = ops.allreduce([x * 2.0, tf.ones([2])], training, kind="gradients")[0]
        third = ops.broadcast([x], training, 1)[0]
        other = ops.allreduce([x * 3.0], evaluation)[0]
        feed = {x: integers(5, W.rank)}
        before = ops.counters()["gradients"]
        equal(session.run(other, feed), 3 * total(5))
        assert ops.counters()["gradients"] == before  # an evaluation does not run the training's collectives
        pairs = [(first, total(5) * 0.5), (second, 2 * total(5)), (third, integers(5, 1))]
        if W.rank:
            pairs.reverse()  # the token decides, not the order of the fetches
        for result, (_, want) in zip(session.run([tensor for tensor, _ in pairs], feed), pairs, strict=True):
            equal(result, want)


@case
def v1_loops_and_branches():
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x, order = tf.compat.v1.placeholder(tf.float32, [3]), ops.Order()
            (first,) = ops.allreduce([x], order)
            branch = tf.compat.v1.cond(first[0] > -1e9, lambda: ops.allreduce([x * 2.0], order)[0], lambda: x)
            _, loop = tf.compat.v1.while_loop(
                lambda i, _: i < 2, lambda i, y: (i + 1, ops.allreduce([y], order)[0]), (tf.constant(0), branch)
            )
            with tf.control_dependencies([loop]):
                (last,) = ops.allreduce([tf.identity(x)], order)
            feed = {x: integers(3, W.rank)}
            for result, want in zip(
                session.run([first, branch, loop, last], feed),
                [total(3), 2 * total(3), 2 * total(3) * W.size**2, total(3)],
                strict=True,
            ):
                equal(result, want)
    finally:
        tf.compat.v1.enable_control_flow_v2()


@case
def broadcast_of_all_dtypes():
    dtypes = FLOATS + INTEGERS + [tf.bool, tf.int8, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.complex64]
    for mode in modes():
        mine = abs(integers((3, 2), W.rank))
        values = [tf.constant(mine > 3 if dtype == tf.bool else mine, dtype) for dtype in dtypes]
        results = traced(mode, lambda values: ops.broadcast(values, ops.Order(), 1))(values)
        for result, dtype in zip(results, dtypes, strict=True):
            assert result.dtype == dtype
            want = abs(integers((3, 2), 1))
            equal(np.asarray(result).real, want > 3 if dtype == tf.bool else want)


@case
def rows_of_different_numbers():
    def step(rows):
        order = ops.Order()
        gathered = ops.allgather_rows(rows, order)
        (reduced,) = ops.allreduce([tf.ones([2])], order)
        slices = tf.IndexedSlices(rows, tf.range(tf.shape(rows)[0]) + 10, tf.constant([50, 2]))
        return gathered, reduced, ops.allgather_slices(slices, order, tf.constant(0.5))

    for run in (step, tf.function(step, input_signature=[tf.TensorSpec([None, 2])])):
        mine = tf.constant(integers((W.rank, 2), W.rank), tf.float32)  # rank 0 has none
        before = ops.counters()["gradients"]
        gathered, reduced, slices = run(mine)
        assert ops.counters()["gradients"] == before + 1
        want = np.concatenate([integers((r, 2), r) for r in range(W.size)])
        equal(gathered, want)
        equal(reduced, [W.size, W.size])
        equal(slices.values, want * 0.5)
        equal(slices.indices, np.concatenate([np.arange(r) + 10 for r in range(W.size)]))


@case
def ranks_that_disagree_are_told():
    def reduce(tensor, kind="values"):
        return ops.allreduce([tensor], ops.Order(), kind=kind)

    error = (tf.errors.OpError, CollectiveError)
    raises(error, "tensor 0: float32 (3,) on rank 0, tensor 0: float32 (4,) on rank 1",
           reduce, tf.ones([4 if W.rank == 1 else 3]))  # fmt: skip
    raises(error, "float64 (3,) on rank 1", reduce, tf.ones([3], tf.float64 if W.rank == 1 else tf.float32))
    raises(error, "(gradients); rank 1 is at number", reduce, tf.ones([3]), "metrics" if W.rank == 1 else "gradients")
    raises(error, "broadcast of 1 tensors (values) from rank 1",
           lambda: reduce(tf.ones([3])) if W.rank == 0 else ops.broadcast([tf.ones([3])], ops.Order(), 1))  # fmt: skip
    raises(CollectiveError, "rank 0 is at number", lambda: W.any(True) if W.rank else W.barrier())
    raises(CollectiveError, "broadcast of 1 arrays", lambda: W.broadcast_arrays([np.zeros(2 + W.rank)]))
    equal(reduce(tf.ones([3]))[0], [W.size] * 3)  # and the lane still works
    if ops.supports_jit():
        raises(error, "the ranks disagree", tf.function(reduce, jit_compile=True), tf.ones([4 if W.rank == 1 else 3]))


@case
def wrong_use_is_refused():
    order = ops.Order()
    raises(CollectiveError, "string", ops.allreduce, [tf.constant("a")], order)
    raises(CollectiveError, "bool", ops.allreduce, [tf.constant(True)], order)
    raises(CollectiveError, "string", ops.broadcast, [tf.constant("a")], order)
    raises(CollectiveError, "integers can't be scaled", ops.allreduce, [tf.constant([1])], order, tf.constant(0.5))

    def unknown(x, **shapes):
        return ops.allreduce([x * 1.0], ops.Order(), **shapes)

    signature = [tf.TensorSpec([None, 1])]
    raises(CollectiveError, "(None, 1)", tf.function(unknown, input_signature=signature).get_concrete_function)
    known = tf.function(lambda x: unknown(x, shapes=[(2, 1)]), input_signature=signature)
    equal(known(tf.ones([2, 1]))[0], np.full((2, 1), W.size))
    gather = tf.function(lambda x: ops.allgather_rows(x, ops.Order()), jit_compile=True)
    raises(CollectiveError, "jit_compile", gather, tf.ones([2, 2]))
    if not ops.supports_jit():
        run = tf.function(lambda x: ops.allreduce([x], ops.Order()), jit_compile=True)
        raises(CollectiveError, "jit_compile", run, tf.ones([2, 2]))
    raises(CollectiveError, "object", W.broadcast_arrays, [np.array(["a"], object)])
    raises(CollectiveError, "C-contiguous", W.broadcast_arrays, [np.zeros((4, 4))[:, ::2]])
    raises(CollectiveError, "int64", W.mean_arrays, [np.zeros(2, np.int64)])


@case
def control_lane():
    assert W.any(W.rank == W.size - 1) is True and W.any(False) is False
    W.barrier()
    W.node_barrier()
    assert (W.local_rank, W.local_size) == (W.rank, W.size)  # all on this node
    assert W.broadcast_object({"rank": W.rank}, 1) == {"rank": 1}
    assert W.allgather_object("x" * W.rank) == ["x" * rank for rank in range(W.size)]
    means = [np.full((2, 3), W.rank, tf.bfloat16.as_numpy_dtype), np.array(W.rank, np.float64), np.zeros(0, np.float32)]
    W.mean_arrays(means)
    equal(means[0], np.full((2, 3), (W.size - 1) / 2))
    equal(means[1], (W.size - 1) / 2)
    same = [np.full(1000, 0.1, np.float32)]
    W.mean_arrays(same)
    equal(same[0], np.full(1000, 0.1, np.float32))  # the mean of equal values is that value, to the bit
    for dtype in ("float16", "float32", "int8", "uint64", "bool", "complex128", tf.bfloat16.as_numpy_dtype):
        rows = np.full((W.rank + 1, 2), W.rank % 2, dtype)
        gathered = W.allgather_rows(rows)
        assert gathered.dtype == rows.dtype
        equal(gathered.real, [[rank % 2] * 2 for rank in range(W.size) for _ in range(rank + 1)])
    assert W.allgather_rows(np.zeros((W.rank, 0))).shape == (W.size * (W.size - 1) // 2, 0)


@case
def arrays_longer_than_one_mpi_call():
    block, world._BLOCK = world._BLOCK, 1000
    try:
        values = [np.full(12_345, W.rank + 7, np.int16), np.full((), W.rank, np.int64), np.full((77, 5), W.rank == 1)]
        W.broadcast_arrays(values, 1)
        means = [np.arange(12_345, dtype=np.float32) + W.rank]
        W.mean_arrays(means)
    finally:
        world._BLOCK = block
    equal(values[0], np.full(12_345, 8))
    equal(values[1], 1)
    equal(values[2], np.ones((77, 5)))
    equal(means[0], np.arange(12_345) + (W.size - 1) / 2)


@case
def forks_and_second_threads_are_refused():
    import threading

    child = os.fork()
    if not child:
        try:
            W.any(True)
        except CollectiveError as error:
            os._exit(7 if "forked child" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    if W.rank == 0:
        errors = []

        def second():
            time.sleep(0.3)  # by now the main thread waits in its barrier for the late ranks
            try:
                W.barrier()
            except CollectiveError as error:
                errors.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        W.barrier()
        thread.join()
        assert len(errors) == 1 and "another thread" in errors[0]
    else:
        time.sleep(0.8)
        W.barrier()


@case
def grows_no_memory():
    import resource

    run = tf.function(lambda x: ops.allreduce([x, x], ops.Order()))
    x = tf.ones([1000])
    for _ in range(200):
        run(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        run(x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8000  # KiB


def main(collectives, names):
    global W, ops
    size = ranks.from_launcher(os.environ).size
    W = world.init(size, settings.Settings(job="test", size=size, seed=0, collectives=collectives, bucket_mb=1.0))
    from matexrun.collectives import ops

    assert ops.backend() == ("numpy" if collectives == "numpy" else "ffi")
    for name in names or CASES:
        error = value = None
        try:
            value = CASES[name]()
        except BaseException:
            error = traceback.format_exc()
        line = json.dumps({"rank": W.rank, "case": name, "error": error, "value": value})
        sys.stdout.write(f"\nRESULT {line}\n")  # one write: the ranks share the pipe
        sys.stdout.flush()
    assert W.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
