"""headway completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headway.cli.output import until_nobody_reads

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

SHELLS = ("bash", "zsh", "fish")

_BASH = r"""
%(complete_func)s() {
    # Bash splits words at = and : (COMP_WORDBREAKS). Headway sees them whole; of what it answers, the part
    # that bash takes for earlier words is cut off again.
    local words=() current=0 word before="" index
    for index in "${!COMP_WORDS[@]}"; do
        word="${COMP_WORDS[index]}"
        if (( ${#words[@]} > 1 )) && { [[ $word == [=:]* ]] || [[ $before == *[=:] ]]; }; then
            words[${#words[@]}-1]+="$word"
        else
            words+=("$word")
        fi
        before="$word"
        if (( index == COMP_CWORD )); then
            current=$(( ${#words[@]} - 1 ))
            break
        fi
    done
    local typed="${COMP_WORDS[COMP_CWORD]}" whole="${words[current]}"
    [[ $typed == *[=:] && $whole != "$typed" ]] && typed=""
    local cut="${whole%%"$typed"}"

    local IFS=$'\n' response completion type value
    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$current %(complete_var)s=bash_complete "$1")
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain)
                COMPREPLY+=("${value#"$cut"}")
                ;;
        esac
    done
    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace  # its value follows
    return 0
}

%(complete_func)s_setup() {
    complete -o nosort -F %(complete_func)s %(prog_name)s
}

%(complete_func)s_setup;
"""


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    r"""Let the shell complete commands, keys and runs.

    Prints a script for SHELL: bash, zsh or fish. Evaluated in the shell's start file, it completes commands,
    options, config keys with their choices, environments, and the runs in runs/.

    \b
    Examples:
      eval "$(headway completion bash)"                                  in ~/.bashrc
      eval "$(headway completion zsh)"                                   in ~/.zshrc
      headway completion fish > ~/.config/fish/completions/headway.fish  once
    """
    from click.shell_completion import get_completion_class

    from headway.cli.main import cli

    kind = _bash() if shell == "bash" else get_completion_class(shell)
    if kind is None:  # a choice that click itself does not know
        raise click.UsageError(f"There is no completion for {shell}.")
    with until_nobody_reads():
        click.echo(kind(cli, {}, "headway", "_HEADWAY_COMPLETE").source())
    return 0


def _bash() -> type[ShellComplete]:
    """Return click's completion for bash with a script that knows of KEY=VALUE."""
    from click.shell_completion import BashComplete

    class KeyValueBash(BashComplete):
        source_template = _BASH

    return KeyValueBash
