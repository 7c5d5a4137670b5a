"""Adds orders to a topic until it is stopped, a few hundred per second."""

from __future__ import annotations

import argparse
import json
import signal
import time

import numpy as np
from kafka import KafkaProducer

_PER_SECOND = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--first", type=int, required=True, help="id of the first order")
    parser.add_argument("--begin", required=True, help="time of the first order; ten orders per second of event time")
    arguments = parser.parse_args()
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    producer = KafkaProducer(bootstrap_servers=arguments.broker, linger_ms=20)
    begin, number = np.datetime64(arguments.begin, "us"), arguments.first
    while not ended:
        for _ in range(_PER_SECOND // 10):
            at = begin + np.timedelta64((number - arguments.first) * 100_000, "us")
            order = {"id": number, "at": f"{at}Z", "shop": number * 31 % 100, "cents": number * 37 % 100_000}
            producer.send(arguments.topic, json.dumps(order).encode())
            number += 1
        time.sleep(0.1)
    producer.close(30)


if __name__ == "__main__":
    main()
