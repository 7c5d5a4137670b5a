"""Finds messages in Protobuf's descriptors: of a file that ``protoc`` wrote, or of a schema registry (pure)."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from backlog_spark.errors import BacklogError, SettingError

__all__ = ["MessageIndex", "find_message", "load_descriptors", "message_at", "pool_of"]

# The index of a message in its file, then of a message within it, and so on.
MessageIndex = tuple[int, ...]

# Packages with files that descriptors import but need not bring: Google's own, and those of Confluent's registry.
_KNOWN = {"google/protobuf/": "", "google/type/": "", "confluent/": "confluent_kafka.schema_registry."}


def load_descriptors(path: str) -> list[bytes]:
    """The files of a set of descriptors.

    Raises
    ------
    SettingError
        If the file cannot be read, or is no such set.
    """
    try:
        files = FileDescriptorSet.FromString(Path(path).read_bytes()).file
    except OSError as error:
        raise SettingError(
            "protobufDescriptorFile", path, f"cannot be read: {error.strerror}.", "The driver needs the file."
        ) from None
    except DecodeError:
        files = []
    if not files:
        raise SettingError(
            "protobufDescriptorFile", path, "is no set of descriptors.",
            "Make it with protoc --include_imports --descriptor_set_out=FILE.",
        )  # fmt: skip
    return [file.SerializeToString() for file in files]


def pool_of(files: Iterable[bytes]) -> DescriptorPool:
    """A pool with these files, and with Google's own that they import.

    Raises
    ------
    BacklogError
        If another imported file is missing, or the files contradict each other.
    """
    given = {file.name: file for file in map(FileDescriptorProto.FromString, files)}
    pool, added = DescriptorPool(), set[str]()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        file = given.get(name) or _known(name)
        for other in file.dependency:
            add(other)
        try:
            pool.Add(file)
        except TypeError as error:
            raise BacklogError(
                f"the Protobuf file {name} is malformed: {' '.join(str(error).split())}.", "Compile it anew."
            ) from None

    for name in given:
        add(name)
    return pool


def _known(name: str) -> FileDescriptorProto:
    found = FileDescriptorProto()
    prefix = next((prefix for prefix in _KNOWN if name.startswith(prefix)), None)
    try:
        if prefix is None:
            raise ImportError
        module = importlib.import_module(_KNOWN[prefix] + name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        raise BacklogError(
            f"the Protobuf file {name}, which another one imports, is missing.",
            "Make the descriptors with protoc --include_imports, or register the file as a reference.",
        ) from None
    module.DESCRIPTOR.CopyToProto(found)
    return found


def find_message(files: Sequence[bytes], name: str) -> Descriptor:
    """The message of a full name, or the only one of a short name.

    Raises
    ------
    SettingError
    """
    pool = pool_of(files)
    names = [full for file in map(FileDescriptorProto.FromString, files) for full in _names(file)]
    found = [full for full in names if full == name] or [full for full in names if full.rpartition(".")[2] == name]
    if len(found) != 1:
        raise SettingError(
            "protobufMessage", name, "there are several messages of this name." if found else "there is none.",
            f"Set one of {', '.join(found or names)}.",
        )  # fmt: skip
    return pool.FindMessageTypeByName(found[0])


def _names(within: FileDescriptorProto | DescriptorProto, prefix: str = "") -> list[str]:
    is_file = isinstance(within, FileDescriptorProto)
    prefix = within.package if isinstance(within, FileDescriptorProto) else prefix
    found: list[str] = []
    for message in within.message_type if is_file else within.nested_type:
        full = f"{prefix}.{message.name}".lstrip(".")
        if not message.options.map_entry:
            found += [full, *_names(message, full)]
    return found


def message_at(files: Sequence[bytes], index: MessageIndex) -> Descriptor | None:
    """A message of the last file; None without such a one."""
    file = pool_of(files).FindFileByName(FileDescriptorProto.FromString(files[-1]).name)
    # In the order of the file, which a mapping by name does not promise.
    within: Sequence[DescriptorProto] = FileDescriptorProto.FromString(files[-1]).message_type
    found: Descriptor | None = None
    for at in index:
        if not 0 <= at < len(within):
            return None
        name = within[at].name
        found = file.message_types_by_name[name] if found is None else found.nested_types_by_name[name]
        within = within[at].nested_type
    return found
