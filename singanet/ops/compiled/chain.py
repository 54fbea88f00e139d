"""Write functions that make calls one after the other, or share them among threads.

A call is six long integers: the address of a function of C, the bits of its result that mean a
failure, and four arguments. Threads share a *job*: its `HEADER`, then its stages, one after the
other. A stage has the number of its parts, the address of a table of the parts' calls and their
counts, and the address of its flags, of `LINE` bytes each: the parts that are done, then each part.
"""

from __future__ import annotations

from singanet.ops.compiled.code import Code, Value

CALL = 48
"""Bytes of a call."""
LINE = 64
"""Bytes of a flag: threads write different ones without waiting for each other."""

HEADER = (
    "failed", "turn", "stages", "threads", "share", "number", "body", "enter", "busy", "rest",
    "pool",
)  # fmt: skip
"""The long integers of a job.

A result that means failure; the number of the run; counts of stages and threads; the addresses of
the functions that start the threads and tell a thread's number, of `body` and of `enter`, of a
number that is not 0 while other processes use the cores, of the function that gives up the rest of
a core's time, and of the library's own pool, if its threads run the job.
"""

POOL = ("lock", "calls", "job", "active", "asleep", "busy", "futex", "syscall")
"""The long integers of a pool, `LINE` bytes each.

Whether a caller uses it; the number of jobs so far; the address of the present job; the threads
that may use it, and that sleep; the address of a number that is not 0 while other processes use the
cores; the number of the system call that sleeps and wakes, and the address of its function.
"""

_WAKE, _SLEEP, _ALL = 129, 128, 1 << 30
"""Arguments of Linux's futex: within a process; all threads."""

_AWAKE = 1 << 12
"""Turns of waiting until a thread sleeps: some 100 microseconds, the gap between two kernels."""

_SPINS = 256
"""Turns of waiting between two attempts to let other threads have the core."""


def _place(name: str) -> int:
    return 8 * HEADER.index(name)


def calls() -> Code:
    """Write a function of calls, of the place of a result that means failure, and of a count."""
    code = Code("calls", pointers=2, numbers=1)
    first, failed, count = code.arguments
    _make(code, first, failed, count)
    return code


def _make(code: Code, first: Value, failed: Value, count: Value) -> None:
    with code.each(0, count) as k:
        at = code.times(k, CALL)
        function, bits, *given = (code.long(first, code.sum(at, 8 * j)) for j in range(6))
        result = code.both(code.run(function, *given), bits)
        with code.when(code.differs(result, 0)):
            code.store_long(result, failed, 0)


def body() -> Code:
    """Write a function of a job, for the thread of a number.

    A thread takes its own part of a stage first, which its cache may have, then the others that are
    left. So all are done if no other thread comes.
    """
    code = Code("body", pointers=1, numbers=1)
    job, thread = code.arguments
    turn = code.shared_long(job, _place("turn"))
    threads = code.long(job, _place("threads"))
    with code.each(0, code.long(job, _place("stages"))) as s:
        stage = code.beyond(job, code.sum(8 * len(HEADER), code.times(s, 24)))
        count = code.long(stage, 0)
        table, flags = (code.pointer_at(code.long(stage, at)) for at in (8, 16))
        own = code.whole(code.times(thread, count), threads)
        with code.each(0, count) as j:
            part = code.rest(code.sum(own, j), count)
            flag = code.times(LINE, code.sum(part, 1))
            # Reading first: a flag that is set needs no exchange.
            with (
                code.when(code.differs(code.shared_long(flags, flag), turn)),
                code.when(code.differs(code.exchange(turn, flags, flag), turn)),
            ):
                at = code.times(16, part)
                first = code.pointer_at(code.long(table, at))
                failed = code.beyond(job, _place("failed"))
                _make(code, first, failed, code.long(table, code.sum(at, 8)))
                code.count(1, flags, 0)
        wanted = code.times(turn, count)
        with code.again_while(lambda _: code.below(code.shared_long(flags, 0), wanted)) as k:
            code.pause()
            with code.when(code.same(code.rest(k, _SPINS), _SPINS - 1)):
                code.run(code.long(job, _place("rest")))
    return code


def enter() -> Code:
    """Write a function that runs `body` on a thread of OpenMP."""
    code = Code("enter", pointers=1, numbers=0)
    (job,) = code.arguments
    number = code.run(code.long(job, _place("number")))
    code.run(code.long(job, _place("body")), code.address(job), number)
    return code


def share() -> Code:
    """Write a function that runs a job on all its threads, or on one if the cores are busy."""
    code = Code("share", pointers=1, numbers=0)
    (job,) = code.arguments
    code.store_shared(code.sum(code.shared_long(job, _place("turn")), 1), job, _place("turn"))
    busy = code.shared_long(code.pointer_at(code.long(job, _place("busy"))), 0)
    with code.when(code.differs(busy, 0)):
        code.run(code.long(job, _place("body")), code.address(job), 0)
    with code.when(code.same(busy, 0)):
        enters, threads = (code.long(job, _place(name)) for name in ("enter", "threads"))
        code.run(code.long(job, _place("share")), enters, code.address(job), threads, 0)
    return code


def _line(name: str) -> int:
    return LINE * POOL.index(name)


def start() -> Code:
    """Write a function that runs a job on the calling thread and the threads of a pool.

    It has the arguments of ``GOMP_parallel``, of which only the job matters. The job is the calling
    thread's alone if another uses the pool.
    """
    code = Code("start", pointers=2, numbers=2)
    _, job, *_ = code.arguments
    pool = code.pointer_at(code.long(job, _place("pool")))
    body, here = code.long(job, _place("body")), code.address(job)
    taken = code.exchange(1, pool, _line("lock"))
    with code.when(code.differs(taken, 0)):
        code.run(body, here, 0)
    with code.when(code.same(taken, 0)):
        code.store_shared(here, pool, _line("job"))
        code.count(1, pool, _line("calls"))
        with code.when(code.differs(code.shared_long(pool, _line("asleep")), 0)):
            _futex(code, pool, _WAKE, _ALL)
        code.run(body, here, 0)
        code.store_shared(0, pool, _line("job"))
        # A thread that has seen the job may still read its memory.
        with code.again_while(
            lambda _: code.differs(code.shared_long(pool, _line("active")), 0)
        ) as k:
            code.pause()
            with code.when(code.same(code.rest(k, _SPINS), _SPINS - 1)):
                code.run(code.long(job, _place("rest")))
        code.store_shared(0, pool, _line("lock"))
    return code


def serve() -> Code:
    """Write a function of a pool, of a long integer of its own and of a thread's number.

    It runs the pool's jobs and does not return.
    """
    code = Code("serve", pointers=2, numbers=1)
    pool, seen, thread = code.arguments
    busy = code.pointer_at(code.long(pool, _line("busy")))
    with code.again_while(lambda _: code.same(0, 0)):
        before = code.long(seen, 0)

        def is_awake(turn: Value) -> Value:
            return code.all_hold(
                code.same(code.shared_long(pool, _line("calls")), before),
                code.below(turn, _AWAKE),
                code.same(code.shared_long(busy, 0), 0),
            )

        with code.again_while(is_awake):
            code.pause()
        code.count(1, pool, _line("asleep"))
        # The system returns at once if there was a job since.
        with code.again_while(lambda _: code.same(code.shared_long(pool, _line("calls")), before)):
            _futex(code, pool, _SLEEP, before)
        code.count(-1, pool, _line("asleep"))
        code.store_long(code.shared_long(pool, _line("calls")), seen, 0)
        code.count(1, pool, _line("active"))
        job = code.shared_long(pool, _line("job"))
        with code.when(code.differs(job, 0)):
            given = code.pointer_at(job)
            with code.when(code.below(thread, code.long(given, _place("threads")))):
                code.run(code.long(given, _place("body")), job, thread)
        code.count(-1, pool, _line("active"))
    return code


def _futex(code: Code, pool: Value, action: int, value: Value) -> None:
    call, number = (code.long(pool, _line(name)) for name in ("syscall", "futex"))
    place = code.address(code.beyond(pool, _line("calls")))
    code.run(call, number, place, action, value, 0, 0, 0)
