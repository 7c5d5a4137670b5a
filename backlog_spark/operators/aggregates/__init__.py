"""The declared aggregates: Spark's own, with accumulators that work in backlog and in stream mode."""

from backlog_spark.operators.aggregates.collect import CollectList, CollectSet
from backlog_spark.operators.aggregates.distinct import ApproxCountDistinct
from backlog_spark.operators.aggregates.extremes import BoolAnd, BoolOr, Max, Min
from backlog_spark.operators.aggregates.moments import StdDev, StdDevPop, Variance, VariancePop
from backlog_spark.operators.aggregates.ordered import First, Last, MaxBy, MinBy
from backlog_spark.operators.aggregates.sums import Avg, Count, Sum

__all__ = [
    "ApproxCountDistinct",
    "Avg",
    "BoolAnd",
    "BoolOr",
    "CollectList",
    "CollectSet",
    "Count",
    "First",
    "Last",
    "Max",
    "MaxBy",
    "Min",
    "MinBy",
    "StdDev",
    "StdDevPop",
    "Sum",
    "Variance",
    "VariancePop",
]
