"""The totals of a model add up its requests and its batches."""

from threading import Thread

from headwaiter_server.metrics.totals import ModelStatistics


def test_requests_and_batches_are_added_up() -> None:
    statistics = ModelStatistics()
    before = statistics.totals()
    statistics.batch_ran(2, packing_s=0.25, run_s=1.0)
    statistics.batch_ran(2, packing_s=0.5, run_s=2.0)
    statistics.batch_ran(5, packing_s=1.0, run_s=4.0)
    statistics.request_answered(3.0, {"queue": 1.0, "compute": 2.0})
    statistics.request_answered(1.0, {"queue": 0.5, "compute": 0.5})
    statistics.request_failed(0.125)
    totals = statistics.totals()
    assert (totals.sequences, totals.batch_count) == (9, 3)
    assert (totals.batches[2].runs.count, totals.batches[2].runs.seconds) == (2, 3.0)
    assert (totals.batches[2].packing.seconds, totals.batches[5].packing.seconds) == (0.75, 1.0)
    assert (totals.succeeded.count, totals.succeeded.seconds) == (2, 4.0)
    assert (totals.failed.count, totals.failed.seconds) == (1, 0.125)
    assert (totals.stages["queue"].seconds, totals.stages["compute"].count) == (1.5, 2)
    assert totals.latest_unix_s > 0
    # A copy of the totals does not change.
    assert (before.sequences, before.batch_count, before.latest_unix_s) == (0, 0, 0.0)


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
