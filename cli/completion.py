"""`ojs-aws completion`: prints the completion script of a shell, made from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

_BASH = """_ojs_aws() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" at="" words="" next word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    next="${{at:+$at }}$word"
    case "$next" in
      {paths}) at="$next" ;;
    esac
  done
  case "$at" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _ojs_aws ojs-aws ./ojs-aws
"""
_ZSH = "#compdef ojs-aws\nautoload -U +X bashcompinit && bashcompinit\n"
_FISH = """function __ojs_aws
  set -l at ""
  for word in (commandline -opc)[2..-1]
    set -l next (string trim -- "$at $word")
    switch "$next"
      case {paths}
        set at "$next"
    end
  end
  switch "$at"
{cases}
  end
end
complete -c ojs-aws -f -a "(__ojs_aws)"
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "completion", help="print the completion script for a shell: `source <(… completion bash)`"
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=lambda options: print(script(options.shell, options.parser), end=""))


def words(parser: argparse.ArgumentParser, at: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each command, `""` for the program, and the subcommands and options it takes."""
    found: list[str] = []
    inner: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list
        found += [each for each in action.option_strings if each.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            inner += action.choices.items()
        elif action.choices and not action.option_strings:
            found += map(str, action.choices)
    yield at, [*(name for name, _ in inner), *found]
    for name, each in inner:
        yield from words(each, f"{at} {name}".strip())


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the completion script of a shell."""
    found = dict(words(parser))
    quoted = [f"'{path}'" for path in found if path]
    if shell == "fish":
        cases = [
            f"    case '{at}'\n      printf '%s\\n' {' '.join(it)}" for at, it in found.items()
        ]
        return _FISH.format(paths=" ".join(quoted), cases="\n".join(cases))
    cases = [f"    '{at}') words='{' '.join(it)}' ;;" for at, it in found.items()]
    text = _BASH.format(paths="|".join(quoted), cases="\n".join(cases))
    return _ZSH + text if shell == "zsh" else text
