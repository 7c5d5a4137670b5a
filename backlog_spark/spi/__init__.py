"""The contract of connectors: what a source offers, and how it is found."""

from backlog_spark.spi.registry import add_connector
from backlog_spark.spi.source_info import SourceInfo, WatermarkCharacteristic

__all__ = ["SourceInfo", "WatermarkCharacteristic", "add_connector"]
