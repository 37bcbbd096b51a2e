"""What is counted does not depend on the Python, nor on whether the code has run before."""

from tests.growth.operations import operations


def test_the_first_go_is_counted_like_the_others() -> None:
    def square(number: int) -> int:
        return number * number

    def work() -> int:
        return sum(square(number) for number in range(100))

    costs = [operations(work) for _ in range(4)]
    assert costs[0] > 500
    assert len(set(costs)) == 1, costs
