from storage.curves import Curve
from sweeps.report.results import ArmResult, by_row, groups_of, reference_of
from tests.curve_makers import make_curve

CURVE = make_curve(length=128)


def result(
    label: str, *, group: str = "", value: float | None = None, seed: int = 0, curve: Curve = CURVE
) -> ArmResult:
    arm = label.removeprefix(f"{group} ").split()[0]
    return ArmResult(label, arm, seed, value, None, curve, None, 1.0, group)


def test_rows_are_one_group_and_label_with_seeds_in_order() -> None:
    results = [
        result("a zero", group="a", seed=1),
        result("b zero", group="b"),
        result("a zero", group="a", seed=0),
        result("a base", group="a"),
    ]
    rows = by_row(results)
    assert list(rows) == [("a", "a zero"), ("a", "a base"), ("b", "b zero")]
    assert [one.seed for one in rows["a", "a zero"]] == [0, 1]
    assert groups_of(results) == ["a", "b"]


def test_references_are_those_of_the_own_group() -> None:
    rows = by_row([result(f"{group} {arm}", group=group) for group in "ab" for arm in ("base", "zero", "tbtt")])
    for group in "ab":
        row = rows[group, f"{group} tbtt"]
        for arm in ("base", "zero"):
            found = reference_of(row, rows, arm)
            assert found is not None and found[0].key == (group, f"{group} {arm}")
    alone = by_row([result("c tbtt", group="c"), *(one for row in rows.values() for one in row)])
    assert reference_of(alone["c", "c tbtt"], alone, "zero") is None


def test_a_control_that_carries_values_meets_the_same_value() -> None:
    swept = [result(f"{arm} {steps:g}", value=steps) for arm in ("zero", "state_passing") for steps in (10.0, 100.0)]
    rows = by_row([result("base"), result("tbtt"), *swept, result("state_passing 1000", value=1000.0)])
    found = reference_of(rows["", "state_passing 100"], rows, "zero")
    assert found is not None and found[0].label == "zero 100"
    assert reference_of(rows["", "state_passing 1000"], rows, "zero") is None, "there is no control of 1000 steps"
    assert reference_of(rows["", "tbtt"], rows, "zero") is None, "without a value there is no control to choose"
    base = reference_of(rows["", "zero 10"], rows, "base")
    assert base is not None and base[0].label == "base", "the base carries no value and so meets all"


def test_a_row_is_not_compared_with_itself() -> None:
    rows = by_row([result("zero"), result("base")])
    assert reference_of(rows["", "zero"], rows, "zero") is None
