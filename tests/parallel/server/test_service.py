"""What one server answers, asked message by message."""

import numpy as np

from singanet.initializer import Constant
from singanet.optimizer import SGD
from singanet.parallel.server.messages import Message, MessageKind
from singanet.parallel.server.service import DENSE, NOTHING, ROWS, Opening, ServedParam, Service
from singanet.params.param import Param, ParamSpec


def test_new_values_come_by_rows_until_more_of_them_changed_than_there_are():
    param = Param(ParamSpec("table"), (4, 2), Constant(0.0))
    opening = Opening(SGD(lr=1.0), None, False, [ServedParam(0, param, replicated=True)])
    service = Service(opening, 2, None)

    def step(worker, *rows):
        """Ones for the gradients of ``rows``; how new values come, and they."""
        layout = np.array([[0, ROWS if rows else NOTHING]])
        given = [np.array(rows), np.ones((len(rows), 2), np.float32)] if rows else []
        ((who, answer),) = service.take(worker, Message(MessageKind.STEP, arrays=[layout, *given]))
        assert who == worker
        return answer.arrays[0][0, 1], *answer.arrays[1:]

    assert [step(worker)[0] for worker in (0, 1)] == [DENSE, DENSE]
    assert step(0) == (NOTHING,)
    how, rows, values = step(0, 2)
    assert how == ROWS
    assert rows.tolist() == [2]
    assert values.tolist() == [[-1.0, -1.0]]
    assert step(0, 0, 2)[1].tolist() == [0, 2]
    step(0, 3)
    # Worker 1 was told of none of the four, and the table has no more.
    how, rows, values = step(1)
    assert how == ROWS
    assert rows.tolist() == [0, 2, 3]
    assert values[:, 0].tolist() == [-1.0, -2.0, -1.0]
    for row in (0, 1, 0, 1, 0):
        step(0, row)
    how, whole = step(1)
    assert how == DENSE
    assert whole[:, 0].tolist() == [-4.0, -2.0, -2.0, -1.0]
