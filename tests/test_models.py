"""Model names, and what they lead to."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from pipeline import models
from pipeline.errors import ModelError


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No network, and the list of hosts that were asked for all the same."""
    hosts: list[str] = []

    def refuse(host: str, *_: object, **__: object) -> None:
        hosts.append(host)
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    return hosts


@pytest.fixture
def hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty local cache of the hub."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def make_model(folder: Path, weights: bytes = b"weights", config: str = "{}") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def make_package(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that carries a model and cannot be imported; the known name is "tiny"."""
    make_model(site / "tiny_pkg" / "model")
    (site / "tiny_pkg" / "__init__.py").write_text("raise ImportError('imported')")
    monkeypatch.syspath_prepend(str(site))
    package = models.Package("tiny_pkg", "model", "org/tiny", "pip install tiny-pkg")
    monkeypatch.setattr(models, "PACKAGES", {"tiny": package, "org/tiny": package})
    return site / "tiny_pkg" / "model"


def cached_snapshot(hub_cache: Path, name: str) -> Path:
    repo = hub_cache / f"models--{name.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    return repo / "snapshots" / "c0ffee"


def test_a_folder_is_itself_and_the_network_is_not_asked(tmp_path: Path, asked: list[str]) -> None:
    folder = make_model(tmp_path / "m")
    assert models.resolve(str(folder)) == folder
    assert asked == []


def test_a_relative_folder_needs_no_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "org" / "m")
    monkeypatch.chdir(tmp_path)
    assert models.resolve("org/m") == Path("org/m")


@pytest.mark.parametrize("offline", ["", "1"])
def test_a_path_that_does_not_exist_fails_at_once_with_the_near_miss(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch, offline: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    make_model(tmp_path / "minilm")
    with pytest.raises(ModelError, match=r"no 'minilmm' in folder .*; did you mean 'minilm'\?"):
        models.resolve(str(tmp_path / "minilmm"))
    assert asked == []


def test_the_first_missing_element_of_a_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(ModelError, match=r"no 'modles' in folder .*did you mean 'models'"):
        models.resolve(str(tmp_path / "modles" / "a" / "b"))


@pytest.mark.parametrize("name", ["./a", "../a", "~/no-such-model", "a/b/c", "a b", "a.gguf"])
def test_what_cannot_be_a_hub_name_is_a_path(
    name: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="give an existing folder"):
        models.resolve(name)
    assert asked == []


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="empty"):
        models.resolve(name)


def test_a_gguf_file_is_itself_and_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "m.bin").write_bytes(b"")
    assert models.resolve(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    with pytest.raises(ModelError, match="is a file"):
        models.resolve(str(tmp_path / "m.bin"))


def test_a_folder_without_configuration_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        models.resolve(str(tmp_path))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled weights \['pytorch_model\.bin'\].*safetensors"):
        models.resolve(str(folder))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    shards = {"a": "model.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(ModelError, match=r"lacks model-2\.safetensors"):
        models.resolve(str(folder))


@pytest.mark.parametrize("name", ["tiny", "org/tiny"])
def test_a_package_is_found_and_not_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    place = make_package(tmp_path, monkeypatch)
    assert models.resolve(name) == place
    assert "tiny_pkg" not in sys.modules
    assert asked == []


def test_a_folder_of_the_same_name_goes_before_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_package(tmp_path / "site", monkeypatch)
    make_model(tmp_path / "here" / "tiny")
    monkeypatch.chdir(tmp_path / "here")
    assert models.resolve("tiny") == Path("tiny")


def test_a_missing_package_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, hub_cache: Path
) -> None:
    package = models.Package("no_such_pkg", "model", "org/tiny", "pip install no-such-pkg")
    monkeypatch.setattr(models, "PACKAGES", {"tiny": package})
    with pytest.raises(ModelError, match=r"'no_such_pkg' is not installed .pip install no-such-pkg"):
        models.resolve("tiny")


def test_the_hubs_cache_is_used_without_asking_the_hub(hub_cache: Path, asked: list[str]) -> None:
    snapshot = make_model(cached_snapshot(hub_cache, "org/m"))
    assert models.resolve("org/m") == snapshot
    assert asked == []


def test_a_half_downloaded_model_is_not_used(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (make_model(cached_snapshot(hub_cache, "org/m")) / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"copy in the local cache of the hub is not usable .*no weights"):
        models.resolve("org/m")


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_the_hub_is_not_asked(
    variable: str, monkeypatch: pytest.MonkeyPatch, hub_cache: Path, asked: list[str]
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ModelError, match="not asked, as HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"):
        models.resolve("org/m")
    assert asked == []


def test_without_a_network_the_error_lists_what_was_tried(hub_cache: Path) -> None:
    with pytest.raises(ModelError) as caught:
        models.resolve("all-MiniLM-L6-v3")
    message = str(caught.value)
    assert "no such folder here; it is not in the local cache of the hub; the hub did not give it" in message
    assert "did you mean 'all-MiniLM-L6-v2'?" in message


def test_the_fingerprint_is_of_the_content_not_of_the_place(tmp_path: Path) -> None:
    one, two = make_model(tmp_path / "one"), make_model(tmp_path / "two")
    (two / "README.md").write_text("not part of the model")
    assert models.fingerprint(one) == models.fingerprint(two)
    assert len(models.fingerprint(one)) == 16


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_other_weights_or_another_configuration_change_the_fingerprint(tmp_path: Path, size: int) -> None:
    one = make_model(tmp_path / "one", bytes(size))
    tail = make_model(tmp_path / "two", bytes(size - 1) + b"x")
    config = make_model(tmp_path / "three", bytes(size), config='{"a": 1}')
    assert len({models.fingerprint(p) for p in (one, tail, config)}) == 3


def test_a_file_that_changes_changes_the_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"one")
    before = models.fingerprint(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert models.fingerprint(file) != before


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.delenv("RIDGEWAY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert models.cache_dir() == Path("/home/u/.cache/ridgeway")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert models.cache_dir() == Path("/x/ridgeway")
    monkeypatch.setenv("RIDGEWAY_CACHE", "~/r")
    assert models.cache_dir() == Path("/home/u/r")


def test_installed_tells_of_each_package_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make_package(tmp_path, monkeypatch)
    absent = models.Package("no_such_pkg", "model", "org/absent", "pip install no-such-pkg")
    monkeypatch.setattr(models, "PACKAGES", {**models.PACKAGES, "absent": absent, "org/absent": absent})
    assert models.installed() == [("tiny", str(place), True), ("absent", "pip install no-such-pkg", False)]
