"""A pipeline as its file declares it (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from backlog_spark.pipelines.document import Document, Fault, Path, PipelineError
from backlog_spark.pipelines.model import PipelineSection, Route, SinkSection, Source, Transform

__all__ = ["DeclaredSource", "Output", "Pipeline", "item_path"]


@dataclass(frozen=True)
class DeclaredSource:
    """A source with its options as texts.

    Parameters
    ----------
    section : Source
    options : dict
        They may be secret.
    """

    section: Source
    options: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class Output:
    """A sink, which gets a query's result or one of its side outputs.

    Parameters
    ----------
    section : SinkSection
    path : tuple
        Where it is in the file.
    query : SinkSection
        The sink of the query's result, which has the query's checkpoint. For this result the same as ``section``.
    side : str
        The side output's name; empty for the result.
    """

    section: SinkSection
    path: Path
    query: SinkSection
    side: str = ""

    @property
    def name(self) -> str:
        """Its name for people."""
        return f"{self.query.name}.{self.side}" if self.side else self.query.name


@dataclass(frozen=True)
class Pipeline:
    """A file that is correct as far as it can be known without a server.

    Parameters
    ----------
    file : str
        The file's name, for errors.
    directory : str
        Where modules of its functions are looked for.
    """

    file: str
    directory: str
    sources: tuple[DeclaredSource, ...]
    transforms: tuple[Transform, ...]
    routes: tuple[Route, ...]
    sinks: tuple[SinkSection, ...]
    pipeline: PipelineSection
    document: Document = field(repr=False)

    def error(self, path: Path, problem: str, hint: str = "") -> PipelineError:
        """The error for a mistake that is found later, at a key of the file."""
        redacted = self.document.redacted
        return PipelineError(self.file, [Fault(self.document.place(path), redacted(problem), redacted(hint))])

    def input_of(self, sink: SinkSection) -> str:
        """The stream that a sink gets."""
        if sink.input is not None:
            return sink.input
        return self.transforms[-1].name if self.transforms else self.sources[0].section.name

    def outputs(self) -> Iterator[Output]:
        """All sinks: for each query that of its result, then those of its side outputs."""
        for index, sink in enumerate(self.sinks):
            path = self.at("sink", index)
            yield Output(sink, path, sink)
            for side, section in sink.side_outputs.items():
                yield Output(section, (*path, "sideOutputs", side), sink, side)

    def checkpoint_of(self, sink: SinkSection) -> str:
        return sink.checkpoint or self.pipeline.checkpoint or ""

    def query_name(self, sink: SinkSection) -> str:
        return self.pipeline.name if len(self.sinks) == 1 else f"{self.pipeline.name}-{sink.name}"

    def at(self, section: str, index: int) -> Path:
        """The path of a section's item."""
        return item_path(self.document, section, index)


def item_path(document: Document, section: str, index: int) -> Path:
    """The path of a section's item. A section may also be one item without a list."""
    return (section, index) if isinstance(document.data.get(section), list) else (section,)
