"""The `powerphase` command, run in the process of the test."""

from typer.testing import CliRunner, Result

from powerphase import PowerphaseError, cli


def invoke(*arguments: object, columns: int = 200) -> Result:
    """The result of a command, whether it succeeds or not."""
    return CliRunner().invoke(cli.app, [*map(str, arguments)], env={"COLUMNS": str(columns)})


def run(*arguments: object) -> Result:
    """The result of a command that must succeed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output or repr(result.exception)
    return result


def error_of(*arguments: object) -> str:
    """The error message of a command that must fail with an error of powerphase."""
    result = invoke(*arguments)
    assert isinstance(result.exception, PowerphaseError), result.output or repr(result.exception)
    return str(result.exception)
