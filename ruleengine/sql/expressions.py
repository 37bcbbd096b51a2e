"""From expressions to closures: the closures that `Program` evaluates are created here, once for each rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Final, TypeAlias, TypeVar

from ..functions.budget import Budget
from ..functions.function import Function
from ..functions.undefined import UNDEFINED
from ..functions.values import measure, same
from . import values
from .ast import (
    Arithmetic,
    Case,
    Compare,
    Expression,
    FunctionCall,
    Index,
    InList,
    Key,
    ListOf,
    Literal,
    Logic,
    Path,
    Range,
    Slice,
    Step,
    Tail,
    Unary,
)
from .error import SqlError
from .paths import TAIL, read_index, read_key, read_slice
from .scope import Scope

Evaluate: TypeAlias = Callable[[Scope], object]
Read: TypeAlias = Callable[[Scope, object, object], object]
Operation: TypeAlias = Callable[[object, object, Budget], object]
Value = TypeVar("Value")

_ARITHMETIC: Final[dict[str, Operation]] = {
    "+": values.add,
    "-": values.subtract,
    "*": values.multiply,
    "/": values.divide,
    "div": values.divide_whole,
    "mod": values.remainder,
}


class Expressions:
    """Compiles the expressions of one statement.

    `named`: the names that fields have written before the current expression is evaluated. These names are results, all
    others are columns. `metadata` is the column of that name, which belongs to the rule and not to the event."""

    def __init__(self, functions: Mapping[str, Function], metadata: dict[str, object] | None) -> None:
        self.functions = functions
        self.metadata = metadata
        self.named: set[str] = set()

    def compile(self, expression: Expression) -> Evaluate:
        """Return the closure that evaluates the expression. Raises `SqlError` for an unknown function or a wrong number
        of arguments."""
        match expression:
            case Literal(value=value):
                return _constant(value)
            case Path():
                return self._path(expression)
            case Compare():
                return self._compare(expression)
            case Arithmetic():
                return self._arithmetic(expression)
            case Logic():
                operands = [self.condition(operand) for operand in expression.operands]
                return _any_of(operands) if expression.operator == "or" else _all_of(operands)
            case Unary():
                return self._unary(expression)
            case FunctionCall():
                return self._call(expression)
            case Case():
                return self._case(expression)
            case InList():
                return self._member(expression)
            case ListOf():
                return _list([self.compile(item) for item in expression.items])
            case Range():
                return _range(expression.first, expression.last)
            case Slice():
                return _slice(self._path(expression.path), expression.first, expression.last)

    def collection(self, expression: Expression) -> Evaluate:
        """Return the closure for the collection of FOREACH: the payload as JSON, if it is named as a whole."""
        if not isinstance(expression, Path) or expression.steps or expression.name != "payload":
            return self.compile(expression)
        decoded, column = self._outermost(expression.name), self.column(expression.name)

        def read(scope: Scope) -> object:
            try:
                return decoded(scope)
            except ValueError:  # not JSON: like any value that is not a list, it has no elements
                return column(scope)

        return read

    def condition(self, expression: Expression) -> Evaluate:
        """Return the closure of a condition, which is true only if its value is exactly True."""
        return self.compile(expression)

    def steps(self, path: Path) -> Callable[[Scope], list[object]]:
        """Return the closure that returns the steps of a path in the form for `paths.store`."""
        compiled = [self._stored_step(step) for step in path.steps]
        return lambda scope: [step(scope) for step in compiled]

    def column(self, name: str) -> Evaluate:
        """Return the closure that reads a result, or else a column."""
        if name in self.named:
            return lambda scope: scope.results[name]
        if name == "metadata" and self.metadata is not None:
            return _constant(self.metadata)
        return lambda scope: scope.columns.get(name, UNDEFINED)

    def _stored_step(self, step: Step) -> Evaluate:
        match step:
            case Key(name=name):
                return _constant((name,))
            case Tail():
                return _constant(TAIL)
            case Index(expression=expression):
                evaluate = self.compile(expression)
                return lambda scope: _whole(evaluate(scope))

    def _path(self, path: Path) -> Evaluate:
        name, steps = path.name, path.steps
        if not steps:
            return self.column(name)
        outermost = self._outermost(name)
        if len(steps) == 1 and isinstance(steps[0], Key):
            key = steps[0].name

            def read_one(scope: Scope) -> object:
                value = outermost(scope)
                if type(value) is dict:
                    return value.get(key, UNDEFINED)
                return read_key(value, key, scope.budget)

            return read_one
        reads = [self._read(step) for step in steps]

        def read_all(scope: Scope) -> object:
            value = base = outermost(scope)
            for read in reads:
                value = read(scope, value, base)
                if value is UNDEFINED:
                    break
            return value

        return read_all

    def _outermost(self, name: str) -> Evaluate:
        """Return the value at the start of a path with steps; for the payload, decoded as JSON."""
        column = self.column(name)
        if name != "payload":
            return column
        if name not in self.named:
            return lambda scope: scope.columns.payload_json()

        def read(scope: Scope) -> object:
            value = column(scope)
            if (type(value) is str or type(value) is bytes) and value is scope.columns.get("payload"):
                return scope.columns.payload_json()
            return value

        return read

    def _read(self, step: Step) -> Read:
        if isinstance(step, Key):
            return partial(_step_key, step.name)
        if isinstance(step, Tail):
            return _step_nowhere
        evaluate = self.compile(step.expression)
        return partial(_step_index, evaluate, self._index_within(step.expression))

    def _index_within(self, expression: Expression) -> Callable[[object, Budget], object] | None:
        """Look up a bare name in an index, if it is not a column, in the value at the start of the path."""
        if not isinstance(expression, Path) or not all(isinstance(step, Key) for step in expression.steps):
            return None
        keys = [expression.name, *(step.name for step in expression.steps if isinstance(step, Key))]

        def find(base: object, budget: Budget) -> object:
            for key in keys:
                base = read_key(base, key, budget)
            return base

        return find

    def _compare(self, compare: Compare) -> Evaluate:
        left, right = self.compile(compare.left), self.compile(compare.right)
        fixed = compare.right.value if isinstance(compare.right, Literal) else None
        match compare.operator:
            case "=":
                return _equals(left, right)
            case "!=":
                return lambda scope: not values.equals(left(scope), right(scope), scope.budget)
            case "<":
                return lambda scope: values.less(left(scope), right(scope), scope.budget)
            case ">" if isinstance(fixed, int | float) and not isinstance(fixed, bool):
                return _greater_than(left, fixed)
            case ">":
                return lambda scope: _swapped(values.less, left(scope), right(scope), scope.budget)
            case "<=":
                return lambda scope: values.at_most(left(scope), right(scope), scope.budget)
            case ">=":
                return lambda scope: _swapped(values.at_most, left(scope), right(scope), scope.budget)
            case _:
                return lambda scope: values.matches_filter(left(scope), right(scope), scope.budget)

    def _arithmetic(self, chain: Arithmetic) -> Evaluate:
        first = self.compile(chain.first)
        rest = [(_ARITHMETIC[term.operator], self.compile(term.operand)) for term in chain.rest]

        def evaluate(scope: Scope) -> object:
            value = first(scope)
            for operate, operand in rest:
                value = operate(value, operand(scope), scope.budget)
            return value

        return evaluate

    def _unary(self, unary: Unary) -> Evaluate:
        operand = self.compile(unary.operand)
        if unary.operator == "not":
            return lambda scope: operand(scope) is False
        apply = values.negate if unary.operator == "-" else values.affirm
        return lambda scope: apply(operand(scope))

    def _call(self, call: FunctionCall) -> Evaluate:
        name = call.name
        function = self.functions.get(name)
        if function is None:
            environment = get_close_matches(name, self.functions, n=3)
            raise SqlError.at(call.position, f"there is no function {name[:64]}", *environment)
        count = len(call.arguments)
        if not function.takes(count):
            raise SqlError.at(call.position, f"{name} is given {_count(count)}", _arity(function))
        invoke = function.call
        arguments = [self.compile(argument) for argument in call.arguments]

        def evaluate(scope: Scope) -> object:
            given = [argument(scope) for argument in arguments]
            try:
                value = invoke(scope.context(), given)
            except ValueError:
                raise
            except Exception as error:
                # A function may be an operator's own Python: an exception in it fails only this rule.
                raise ValueError(f"{name}: {type(error).__name__}: {error}") from error
            if type(value) is list or type(value) is dict:
                scope.budget.take_bytes(measure(value, scope.budget))
            return value

        return evaluate

    def _case(self, case: Case) -> Evaluate:
        results = [self.compile(branch.result) for branch in case.branches]
        otherwise = _constant(UNDEFINED) if case.otherwise is None else self.compile(case.otherwise)
        if case.subject is None:
            conditions = [self.condition(branch.condition) for branch in case.branches]
            searched = list(zip(conditions, results, strict=True))

            def search(scope: Scope) -> object:
                for condition, result in searched:
                    if condition(scope) is True:
                        return result(scope)
                return otherwise(scope)

            return search
        subject = self.compile(case.subject)
        candidates = [self.compile(branch.condition) for branch in case.branches]
        simple = list(zip(candidates, results, strict=True))

        def choose(scope: Scope) -> object:
            value = subject(scope)
            for candidate, result in simple:
                if same(value, candidate(scope), scope.budget):
                    return result(scope)
            return otherwise(scope)

        return choose

    def _member(self, member: InList) -> Evaluate:
        value = self.compile(member.value)
        items = [self.compile(item) for item in member.items]
        found = not member.negated

        def evaluate(scope: Scope) -> bool:
            wanted = value(scope)
            for item in items:
                if same(wanted, item(scope), scope.budget):
                    return found
            return not found

        return evaluate


def _constant(value: Value) -> Callable[[Scope], Value]:
    return lambda scope: value


def _all_of(operands: list[Evaluate]) -> Evaluate:
    def evaluate(scope: Scope) -> bool:
        for operand in operands:  # noqa: SIM110 - twice as fast as all()
            if operand(scope) is not True:
                return False
        return True

    return evaluate


def _any_of(operands: list[Evaluate]) -> Evaluate:
    def evaluate(scope: Scope) -> bool:
        for operand in operands:  # noqa: SIM110 - twice as fast as any()
            if operand(scope) is True:
                return True
        return False

    return evaluate


def _equals(left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda scope: values.equals(left(scope), right(scope), scope.budget)


def _greater_than(left: Evaluate, fixed: int | float) -> Evaluate:
    def evaluate(scope: Scope) -> bool:
        value = left(scope)
        if type(value) is int or type(value) is float:
            return bool(value > fixed)
        return values.less(fixed, value, scope.budget)

    return evaluate


def _swapped(operate: Operation, left: object, right: object, budget: Budget) -> object:
    """Return the operation with exchanged operands, which are still evaluated from the left."""
    return operate(right, left, budget)


def _list(items: list[Evaluate]) -> Evaluate:
    def evaluate(scope: Scope) -> list[object]:
        built = [item(scope) for item in items]
        # Lists of lists can double with every field: their size is charged.
        if any(type(item) is list or type(item) is dict for item in built):
            scope.budget.take_bytes(measure(built, scope.budget))
        return built

    return evaluate


def _range(first: int, last: int) -> Evaluate:
    size = last - first + 1

    def evaluate(scope: Scope) -> list[int]:
        scope.budget.step(size)
        return list(range(first, last + 1))

    return evaluate


def _slice(path: Evaluate, first: int, last: int) -> Evaluate:
    return lambda scope: read_slice(path(scope), first, last, scope.budget)


def _step_key(key: str, scope: Scope, value: object, base: object) -> object:
    return read_key(value, key, scope.budget)


def _step_nowhere(scope: Scope, value: object, base: object) -> object:
    return UNDEFINED


def _step_index(
    evaluate: Evaluate, within: Callable[[object, Budget], object] | None, scope: Scope, value: object, base: object
) -> object:
    index = evaluate(scope)
    if index is UNDEFINED and within is not None:
        index = within(base, scope.budget)
    return read_index(value, index, scope.budget)


def _whole(index: object) -> int | None:
    return index if type(index) is int else None


def _count(count: int) -> str:
    return "1 argument" if count == 1 else f"{count} arguments"


def _arity(function: Function) -> str:
    least, most = function.min_args, function.max_args
    if most is None:
        return f"at least {least}"
    return str(least) if least == most else f"{least} to {most}"
