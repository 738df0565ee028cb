"""Options from three places: which wins, and what is refused."""

import dataclasses
import re

import pytest
import yaml

from matexrun.errors import UsageError
from matexrun.launch.config import Options, defaults_file, resolve
from matexrun.settings import Settings


@pytest.fixture
def config(tmp_path):
    def write(text):
        (tmp_path / "run.yaml").write_text(text)
        return str(tmp_path / "run.yaml")

    return write


def test_command_line_wins_over_the_file_which_wins_over_the_defaults(config):
    file = config("ranks: 3\nbucket-mb: 8\n")
    options = resolve({"ranks": 5, "seed": None}, file)
    assert (options.ranks, options.bucket_mb, options.chunk_mb, options.seed) == (5, 8.0, 4.0, None)


def test_default_file_names_every_option_and_agrees_with_settings():
    defaults = {key.replace("-", "_"): value for key, value in yaml.safe_load(defaults_file().read_text()).items()}
    assert set(defaults) == {field.name for field in dataclasses.fields(Options)}
    settings = {field.name: field.default for field in dataclasses.fields(Settings)}
    given = {name for name, value in defaults.items() if value is not None}
    assert given <= set(settings)
    for name in given:
        assert defaults[name] == settings[name], name


def test_options_reach_the_ranks_through_the_environment():
    settings = Settings(job="j", size=2, seed=1, sync_batchnorm=True, check_every=5, scale_lr="sqrt")
    assert Settings.from_env(settings.to_env()) == settings
    with pytest.raises(UsageError, match="MATEXRUN_SYNC_BATCHNORM='yes': expected bool"):
        Settings.from_env({**settings.to_env(), "MATEXRUN_SYNC_BATCHNORM": "yes"})


def test_options_that_mean_nothing_alone():
    for given in ({"scale_lr": "linear"}, {"warmup_steps": 3}):
        with pytest.raises(UsageError, match="need --batch per-rank"):
            resolve(given)
    assert resolve({"batch": "per-rank", "scale_lr": "linear", "warmup_steps": 3}).warmup_steps == 3


def test_null_in_a_file_is_as_if_it_were_not_there(config):
    assert resolve({}, config("ranks: null\nlog-dir:\n")) == resolve({})


def test_an_empty_file_changes_nothing(config):
    assert resolve({}, config("# nothing\n")) == resolve({})


@pytest.mark.parametrize(
    "text, message",
    [
        ("rank: 3", "unknown key 'rank': did you mean ranks?"),
        ("cpus_per_rank: 3", "unknown key 'cpus_per_rank': did you mean cpus-per-rank?"),
        ("zzz: 3", "unknown key 'zzz': the keys are ranks, "),
        ("7: 3", "unknown key 7: the keys are ranks, "),
        ("ranks: 0", "ranks: expected a whole number of at least 1, got 0"),
        ("ranks: four", "ranks: expected a whole number of at least 1, got 'four'"),
        ("ranks: '4'", "ranks: expected a whole number of at least 1, got '4'"),
        ("ranks: 2.5", "ranks: expected a whole number of at least 1, got 2.5"),
        ("ranks: true", "ranks: expected a whole number of at least 1, got True"),
        ("ranks: [2]", "ranks: expected a whole number of at least 1, got [2]"),
        ("seed: 2147483648", "seed: expected a whole number from 0 to 2147483647, got 2147483648"),
        ("bucket-mb: big", "bucket-mb: expected a number of at least 0.001, got 'big'"),
        ("bucket-mb: .nan", "bucket-mb: expected a number of at least 0.001, got nan"),
        ("chunk-mb: .inf", "chunk-mb: expected a number of at least 0.001, got inf"),
        ("inexact: maybe", "inexact: expected error or warn, got 'maybe'"),
        ("inexact: null", "inexact: expected error or warn, got None"),
        ("collectives: [ffi]", "collectives: expected auto or ffi or numpy, got ['ffi']"),
        ("log-dir: 3", "log-dir: expected text, got 3"),
        ("sync-batchnorm: 1", "sync-batchnorm: expected true or false, got 1"),
        ("- ranks", "expected lines of `key: value`, got a list"),
        ("ranks: [", "line 1: not YAML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_it(config, text, message):
    file = config(text)
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        resolve({}, file)
    assert str(caught.value).startswith(file) and "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        resolve({}, str(tmp_path / "none.yaml"))
    with pytest.raises(UsageError, match="Is a directory"):
        resolve({}, str(tmp_path))
    (tmp_path / "latin.yaml").write_bytes(b"log-dir: caf\xe9\n")
    with pytest.raises(UsageError, match="in UTF-8"):
        resolve({}, str(tmp_path / "latin.yaml"))


def test_the_command_line_is_checked_by_the_same_rules():
    with pytest.raises(UsageError, match="--cpus-per-rank: expected a whole number of at least 1, got -1"):
        resolve({"cpus_per_rank": -1})
