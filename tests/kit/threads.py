"""Works that run side by side."""

import threading


def in_threads(*works):
    """Run ``works`` in a thread each, and raise the first error of theirs."""
    failures = []

    def run(work):
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
