"""Which rows each step trains."""

from itertools import islice

from headway.trainer.order import Order

LENGTHS = [5, 3, 9, 4, 4, 7, 2]


def test_each_epoch_has_every_row_once_in_an_order_of_its_own():
    order = Order(LENGTHS, 0, True, 3)
    epochs = [order.epoch(0), order.epoch(1)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [3, 3, 1]
        assert sorted(row for batch in batches for row in batch) == list(range(7))
    assert epochs[0] != epochs[1]
    assert order.epoch(0) == epochs[0]
    assert Order(LENGTHS, 1, True, 3).epoch(0) != epochs[0]
    assert Order(LENGTHS, 0, False, 3).epoch(5) == [[0, 1, 2], [3, 4, 5], [6]]


def test_batches_of_tokens_hold_whole_rows():
    order = Order(LENGTHS, 0, False, 16, batch_tokens=8)
    assert order.epoch(0) == [[0, 1], [2], [3, 4], [5], [6]]
    assert order.num_steps(2) == 10
    shuffled = Order(LENGTHS, 0, True, 16, batch_tokens=8)
    assert shuffled.num_steps(3) == sum(len(shuffled.epoch(epoch)) for epoch in range(3))


def test_going_on_after_some_steps_is_the_rest_of_the_order():
    for tokens in (0, 8):
        order = Order(LENGTHS, 3, True, 2, tokens)
        whole = list(islice(order.batches(), 12))
        for after in (0, 1, 5, 9):
            assert list(islice(order.batches(after), 12 - after)) == whole[after:]


def test_the_share_of_the_data_that_was_gone_through():
    assert [batch.epochs for batch in islice(Order([1] * 4, 0, True, 3).batches(), 4)] == [
        0.75,
        1.0,
        1.75,
        2.0,
    ]
