"""Rules of topic rewrite that are refused, and the bounds of those that are not."""

import pytest

from taipan.broker.config import RewriteRule
from taipan.broker.core.rewrite_rules import MAX_TOPIC, RewriteRules, filled, rule_faults


def rule(re: str, dest_topic: str = "z", source_topic: str = "x/#", action: str = "all") -> RewriteRule:
    return RewriteRule(action=action, source_topic=source_topic, re=re, dest_topic=dest_topic)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong, key, said",
    [
        (rule("("), "re", "expected a regular expression of RE2"),
        (rule("(?=x)"), "re", "expected a regular expression of RE2"),
        (rule("x{300}"), "re", "instructions, more than 256"),
        (rule("x" * 513), "re", "at most 512 characters"),
        (rule("x", source_topic="x/#/y"), "source_topic", "a Topic Filter"),
        (rule("x", source_topic="$share/g/x"), "source_topic", "a Topic Filter"),
        (rule("x", ""), "dest_topic", "a Topic Name"),
        (rule("x", "z/+"), "dest_topic", "a Topic Name"),
        (rule("x", "z/+", action="publish"), "dest_topic", "a Topic Name"),
        (rule("x", "$SYS/z", action="publish"), "dest_topic", "outside of $SYS"),
        (rule("x", "$delayed/1/$SYS/z"), "dest_topic", "outside of $SYS"),
        (rule("x", "$share/g/z", action="subscribe"), "dest_topic", "without a group"),
        (rule("x", "z/$1"), "dest_topic", "re has 0"),
    ],
)
def test_a_rule_that_is_wrong(wrong: RewriteRule, key: str, said: str) -> None:
    ((found, what),) = rule_faults(wrong)
    assert found == key and said in what


@pytest.mark.parametrize("right", [rule("x", "z/+", action="subscribe"), rule("^x/(.*)$", "$1/%c"), rule("", "$0")])
def test_a_rule_that_is_right(right: RewriteRule) -> None:
    assert list(rule_faults(right)) == []


def test_an_expression_with_nested_repetitions_ends() -> None:
    """With backtracking, this one would take longer than the universe exists."""
    rules = RewriteRules([rule("^x/((a*)*)*b$")])
    assert rules.look("x/" + "a" * (MAX_TOPIC - 2)) is None
    assert rules.look("x/" + "a" * MAX_TOPIC) == [""]


def test_the_first_of_several_for_one_source_decides() -> None:
    rules = RewriteRules([rule("^x/1$", "first"), rule("^x/(.*)$", "second"), rule("^x/(.)$", "third/$1", "x/+")])
    assert filled(rules.look("x/1") or [], None) == "first"
    assert rules.look("x/2") is None and rules.look("y") is None
