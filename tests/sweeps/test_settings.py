import pytest

from sweeps.settings import SettingError, Settings, build_settings, known_settings, parse_value

SIGMA = "intervention.sigma"


def test_defaults_need_no_assignment() -> None:
    assert build_settings({}, [], SIGMA) == Settings()


def test_assignments_win_over_the_preset() -> None:
    settings = build_settings({"trial.steps": 2000}, ["trial.steps=5", "optimizer.peak_lr=1e-3"], SIGMA)
    assert settings.trial.steps == 5 and settings.optimizer.peak_lr == 1e-3


def test_lists_are_split_at_commas() -> None:
    assert parse_value("sweep.values", "[0.1, 1e-2]") == (0.1, 0.01)
    assert parse_value("intervention.parts", "recurrent,conv") == ("recurrent", "conv")


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("trial.step=5", "there is no setting 'trial.step'; did you mean 'trial.steps'"),
        ("steps=5", "there is no setting 'steps'"),
        ("trial.steps", "has no value; write --set trial.steps=value"),
        ("trial.steps=many", "trial.steps is 'many'; write a whole number"),
        ("trial.steps=0", "trial.steps is 0; write a whole number of at least 1"),
        ("sweep.values=0.1,x", "sweep.values is 'x'; write a number"),
        ("model.size=demoo", "demo"),
        ("tracking.uri=file:./mlruns", "write sqlite:///mlflow.db"),
        ("intervention.sigma=0.1", "what this sweep varies; write --set sweep.values="),
    ],
)
def test_mistakes_are_one_sentence_that_says_what_to_write(assignment: str, sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        build_settings({}, [assignment], SIGMA)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_every_setting_has_a_help_text_below_it() -> None:
    import ast
    import inspect

    from sweeps.settings import GROUPS

    for group in GROUPS.values():
        body = ast.parse(inspect.getsource(group)).body[0].body  # type: ignore[attr-defined]
        for field, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(after, ast.Expr), f"{group.__name__}.{ast.unparse(field.target)} is not explained"
    assert len(known_settings()) == len(set(known_settings()))
