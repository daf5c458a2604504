"""Code and commands of documentation pages, to be run as a reader would run them."""

import re
import shlex

from typer.testing import Result

from tests import command_line

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COMMANDS = ("make", "pip", "powerphase", "python", "ray", "torchrun")
"""The first words of lines that are meant for a terminal."""


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [text for name, text in FENCE.findall(page) if name == language]


def section(page: str, title: str) -> str:
    """The text between a heading and the next one of any level."""
    return re.split(r"^#+ .*$", page.split(f"# {title}\n")[1], flags=re.MULTILINE)[0]


def commands(page: str) -> list[str]:
    """All terminal commands of a page, in blocks and in lines of text, without comments."""
    lines_shown = []
    for part in re.finditer(f"{FENCE.pattern}|{INLINE.pattern}", page, FENCE.flags):
        language, block, inline = part.groups()
        lines = block.splitlines() if language == "sh" else [inline or ""]
        lines_shown += [" ".join(shlex.split(line, comments=True)) for line in lines]
    return [line for line in lines_shown if line.split(" ")[0] in COMMANDS and " " in line]


def invoke(command: str) -> Result:
    """Run a `powerphase` command in this process."""
    name, *arguments = shlex.split(command)
    assert name == "powerphase", command
    return command_line.invoke(*arguments)


def output_of(command: str) -> str:
    """The output of a `powerphase` command, which must succeed."""
    result = invoke(command)
    assert result.exit_code == 0, f"{command}: {result.output or repr(result.exception)}"
    return result.stdout
