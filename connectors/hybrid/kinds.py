"""The kinds of phases. A new kind is one module and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from backlog_spark.errors import BacklogError
from backlog_spark.spi.options import options_of

from .phases import Phase

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """A kind of phase.

    Parameters
    ----------
    module, phase : str
        The module and class of its `Phase`. Imported only for a query with such a phase: others need not install its
        packages.
    options_module, options_class : str
        Module and class of its options.
    families : tuple of str
        Prefixes of options that are passed on, such as ``kafka.``.
    extra : str
        The extra with its packages, as in ``pip install 'backlog-spark[kafka]'``.
    """

    module: str
    phase: str
    options_module: str
    options_class: str
    families: tuple[str, ...]
    extra: str

    def knows(self, option: str) -> bool:
        """Whether the kind has this option; in any case."""
        name = option.lower()
        return name in {known.lower() for known in self.names()} or name.startswith(self.families)

    def names(self) -> list[str]:
        """Its options."""
        return [o.name for o in options_of(self.options())]

    def options(self) -> type[Any]:
        """The class of its options."""
        found: type[Any] = getattr(importlib.import_module(f"{__package__}.{self.options_module}"), self.options_class)
        return found

    def make(self, name: str, options: Mapping[str, str]) -> Phase:
        """Make a phase.

        Raises
        ------
        SettingError
            For wrong options.
        BacklogError
            If a package is missing.
        """
        try:
            module = importlib.import_module(f"{__package__}.{self.module}")
        except ImportError as missing:
            raise BacklogError(
                f"The phase {name} cannot run here: {missing}.", f"Run pip install 'backlog-spark[{self.extra}]'."
            ) from None
        return cast(Phase, getattr(module, self.phase)(name, options))


KINDS: Mapping[str, Kind] = {
    "files": Kind("files.kind", "file_phase", "files.options", "FileOptions", ("fs.",), "files"),
    "delta": Kind("table.kind", "delta_phase", "files.options", "DeltaOptions", ("fs.",), "files"),
    "kafka": Kind("kafka.phase", "KafkaPhase", "kafka.options", "KafkaOptions", ("kafka.", "fs."), "kafka"),
}
