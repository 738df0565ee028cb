"""Pipelines that are split before their maps: the same elements, from the rows of one rank.

In one process: what a rank would take is an argument. Rows are read from files, which are gone where no rank may look.
"""

import itertools

import pytest
import tensorflow as tf

from matexrun.inject import pipelines, pure, slices

Data = tf.data.Dataset


@pytest.fixture(scope="module", autouse=True)
def noted():
    if not hasattr(Data.map, "__wrapped__"):
        pipelines.patch()


def chooser(rank, size):
    """What slices.mine is on a rank."""

    def choose(total):
        start, rows = slices.bounds(total, rank, size)
        if isinstance(total, int):
            return (start, rows, rows) if rows else (0, 1, 0)
        return tf.where(rows > 0, start, 0), tf.maximum(rows, 1), rows

    return choose


def late(dataset, choose):
    single = not isinstance(dataset.element_spec, tuple)
    return dataset.map(lambda *batch: slices.split(batch[0] if single else batch, choose))


def values(dataset):
    return [tf.nest.map_structure(lambda leaf: leaf.tolist(), element) for element in dataset.as_numpy_iterator()]


def plain(rows, batch, drop):
    return Data.range(rows).map(lambda i: i * i).batch(batch, drop_remainder=drop)


def shuffled(rows, batch, drop):
    source = Data.from_tensor_slices(({"a": tf.range(rows)}, tf.range(rows))).shuffle(5, seed=3).repeat(2)
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 2
    mapped = source.map(lambda x, y: ({"a": x["a"] * 3, "b": y}, [y, y]), num_parallel_calls=2).prefetch(2)
    mapped = mapped.with_options(options).map(lambda x, y: (x["a"], {"y": y}))
    return mapped.batch(batch, drop, num_parallel_calls=2).prefetch(1)


def repeated(rows, batch, drop):
    """Batches reach from one pass over the rows into the next; the last pass ends in its middle."""
    mapped = Data.range(rows).map(lambda i: tf.stack([i, -i])).repeat(3).take(3 * rows - 1)
    return mapped.map(lambda pair: tf.strings.as_string(pair)).batch(batch, drop).repeat(2).take(9)


def cached(rows, batch, drop):
    mapped = Data.from_tensor_slices(tf.range(rows)).map(lambda i: i + 1).cache().map(lambda i: (i, i))
    return mapped.batch(batch, drop_remainder=drop).cache()


MADE = {make.__name__: make for make in (plain, shuffled, repeated, cached)}


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_the_same_elements(name, drop):
    """Two epochs, of every rank; datasets of their own, because reshuffling goes on from epoch to epoch."""
    for rows, batch, size in [(9, 4, 3), (8, 4, 2), (3, 5, 2)]:
        for rank in range(size):
            choose = chooser(rank, size)
            early = pipelines.rebuilt(MADE[name](rows, batch, drop), choose)
            expected = late(MADE[name](rows, batch, drop), choose)
            assert early.element_spec == expected.element_spec
            for epoch in range(2):
                assert values(early) == values(expected), (rows, batch, size, rank, epoch)


def test_shuffling_goes_on_as_before():
    """One seed is used up in each epoch, whoever iterates."""
    first, second = (plain_shuffle() for _ in range(2))
    early = pipelines.rebuilt(first, chooser(0, 1))
    orders = [[element[0] for element in values(early)], values(first), [element[0] for element in values(early)]]
    assert orders == [values(second) for _ in range(3)]
    assert orders[0] != orders[1]


def plain_shuffle():
    return Data.range(8).shuffle(8, seed=1).map(lambda i: i * 2).batch(4)


@pytest.mark.parametrize("rank", range(3))
def test_only_the_rows_of_the_rank_are_mapped(tmp_path, rank):
    """And once: the cache is whole after as many batches as there are, though none was asked for in vain."""
    rows, batch, choose = 13, 6, chooser(rank, 3)
    files = [tmp_path / str(row) for row in range(rows)]
    dataset = Data.from_tensor_slices(list(map(str, files))).map(tf.io.read_file).cache().batch(batch)
    mine = []
    for first in range(0, rows, batch):
        start, take, _ = choose(min(batch, rows - first))
        mine += range(first + start, first + start + take)
    for row in mine:
        files[row].write_text(str(row))
    assert len(mine) == 5

    early = pipelines.rebuilt(dataset, choose)
    elements = list(itertools.islice(early.as_numpy_iterator(), 3))
    assert [int(text) for element in elements for text in element[0]] == mine
    for row in mine:
        files[row].unlink()
    assert [int(text) for element in early.as_numpy_iterator() for text in element[0]] == mine


def test_functions_are_not_traced_again():
    calls = itertools.count(1)
    early = pipelines.rebuilt(Data.range(4).map(lambda i: i * next(calls)).batch(2), chooser(1, 2))
    assert [element[0] for element in values(early)] == [[1], [3]]
    assert next(calls) == 2


variable = tf.Variable(1, dtype=tf.int64)


def dice(i):
    return i + tf.random.uniform([], maxval=6, dtype=tf.int64)


def in_python(i):
    return tf.ensure_shape(tf.numpy_function(abs, [i], i.dtype, stateful=False), [])


LATE = [
    ("uses RandomUniformInt", lambda rows: rows.map(lambda i: tf.cond(i > 2, lambda: dice(i), lambda: i)).batch(2)),
    ("uses ReadVariableOp", lambda rows: rows.map(tf.function(lambda i: i + variable)).batch(2)),
    ("uses PyFuncStateless", lambda rows: rows.map(in_python).batch(2)),
    ("no `map`", lambda rows: rows.batch(2)),
    ("no `map`", lambda rows: rows.map(abs).shuffle(2).batch(2)),
    ("no `map`", lambda rows: rows.map(abs).filter(lambda i: i > 1).batch(2)),
    ("no `map`", lambda rows: rows.shuffle(4).map(abs).cache().batch(2)),  # keeps the first order
    ("no `map`", lambda rows: rows.map(abs).cache().repeat().batch(2)),
    ("no `map`", lambda rows: rows.map(abs).cache("file").batch(2)),
    ("`repeat` behind", lambda rows: rows.shuffle(4).map(abs).repeat(2).batch(2)),  # TensorFlow fuses them
    ("go through `map`", lambda rows: rows.map(abs).batch(2).map(lambda batch: batch - batch[0])),
    ("go through `cache`", lambda rows: rows.shuffle(4).map(abs).batch(2).cache()),
    ("go through `cache`", lambda rows: rows.map(abs).batch(2).cache("file")),
    ("the shape of its rows", lambda rows: rows.map(lambda i: tf.range(i * 0)).batch(2)),
    ("what makes its batches", lambda rows: rows.map(abs).padded_batch(2)),
    ("what makes its batches", lambda rows: rows.map(abs).batch(2).shuffle(2)),
]


@pytest.mark.parametrize(("reason", "make"), LATE)
def test_what_could_differ_is_left(reason, make):
    with pytest.raises(pipelines.Late, match=reason):
        pipelines.rebuilt(make(Data.range(4)), chooser(0, 2))


def test_a_map_behind_one_that_is_random():
    """Only what follows the random one is left to each rank."""
    tf.random.set_seed(1)
    early = pipelines.rebuilt(Data.range(4).map(dice).map(lambda i: i * 10).batch(4), chooser(1, 2))
    tf.random.set_seed(1)
    expected = late(Data.range(4).map(dice).map(lambda i: i * 10).batch(4), chooser(1, 2))
    assert values(early) == values(expected)


def test_checks_and_branches_have_no_state():
    @tf.function
    def checked(i):
        tf.debugging.assert_less(i, tf.constant(4, tf.int64))
        return tf.cond(i > 1, lambda: i, lambda: -i)

    assert pure.impurity(checked.get_concrete_function(tf.TensorSpec([], tf.int64))) is None
