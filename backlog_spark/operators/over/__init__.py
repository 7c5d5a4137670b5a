"""OVER aggregation: functions over the rows around each row."""
