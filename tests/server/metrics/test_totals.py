"""The totals of a model add up its requests and its batches."""

from threading import Thread

from headwaiter_server.metrics.totals import ModelStatistics


def test_threads_lose_no_request() -> None:
    statistics = ModelStatistics()

    def answer() -> None:
        for _ in range(1000):
            statistics.request_answered(1.0, {"queue": 1.0})

    threads = [Thread(target=answer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statistics.totals().stages["queue"].count == 4000
