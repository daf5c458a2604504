"""Pages as a reader follows them: what they show is written to files and run, in order."""

import re
import shlex

from typer.testing import CliRunner, Result

from powerphase import cli

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COMMANDS = ("make", "pip", "powerphase", "python", "ray", "torchrun")
"""What a line that is meant for a terminal begins with."""


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [text for found, text in FENCE.findall(page) if found == language]


def section(page: str, title: str) -> str:
    """From a heading to the next of any level."""
    return re.split(r"^#+ .*$", page.split(f"# {title}\n")[1], flags=re.MULTILINE)[0]


def commands(page: str) -> list[str]:
    """All that a page shows for a terminal, in blocks and in lines of text, without comments."""
    found = []
    for part in re.finditer(f"{FENCE.pattern}|{INLINE.pattern}", page, FENCE.flags):
        language, block, inline = part.groups()
        lines = block.splitlines() if language == "sh" else [inline or ""]
        found += [" ".join(shlex.split(line, comments=True)) for line in lines]
    return [one for one in found if one.split(" ")[0] in COMMANDS and one not in COMMANDS]


def invoked(command: str) -> Result:
    """A `powerphase` command, in this process."""
    name, *arguments = shlex.split(command)
    assert name == "powerphase", command
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "200"})


def shown(command: str) -> str:
    """What a command writes, which must succeed."""
    done = invoked(command)
    assert done.exit_code == 0, f"{command}: {done.output or repr(done.exception)}"
    return done.stdout
