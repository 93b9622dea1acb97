// SPDX-License-Identifier: Apache-2.0
#include "launcher/reference/scripts.h"

namespace dtrain::reference {
namespace {

// bash takes "=" and ":" for words of their own, so they are put together again, and what stands
// before the last of them is taken off the answers. `starts` leads back to bash's own numbers.
constexpr char kBash[] = R"(# bash completion for dtrain; made by: dtrain completion bash
_dtrain() {
  local typed=() starts=() join= i word line answer prefix
  COMPREPLY=()
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ ${#typed[@]} -gt 0 && ($join || $word == [=:]*) ]]; then
      typed[-1]+=$word
    else
      typed+=("$word")
      starts+=("$i")
    fi
    join=
    [[ $word =~ ^[=:]+$ ]] && join=yes
  done
  mapfile -t answer < <("${COMP_WORDS[0]}" completion words "${typed[@]}" 2>/dev/null)
  case ${answer[0]-} in
    files | directories)
      word=${typed[-1]}
      [[ $word == -*=* ]] && word=${word#*=}
      compopt -o filenames 2>/dev/null
      if [[ ${answer[0]} == files ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
      else
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
      fi
      ;;
    program\ *)
      i=${starts[${answer[0]#* } - 1]}
      if declare -F _command_offset >/dev/null; then
        _command_offset "$i"
      elif ((i == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "${typed[-1]}")
      else
        compopt -o default 2>/dev/null
      fi
      ;;
    words)
      prefix=${typed[-1]%"${COMP_WORDS[COMP_CWORD]#[=:]}"}
      for line in "${answer[@]:1}"; do
        word=${line%%$'\t'*}
        COMPREPLY+=("${word#"$prefix"}")
      done
      [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *: ]] && compopt -o nospace 2>/dev/null
      ;;
  esac
  return 0
}
complete -F _dtrain dtrain
)";

constexpr char kZsh[] = R"(#compdef dtrain
# zsh completion for dtrain; made by: dtrain completion zsh
_dtrain() {
  local -a answer found
  local line word
  answer=("${(@f)$("${(Q)words[1]}" completion words "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  case ${answer[1]} in
    files)
      compset -P '-*='
      _files
      ;;
    directories)
      compset -P '-*='
      _files -/
      ;;
    program\ *)
      shift ${answer[1]#* } words
      ((CURRENT -= ${answer[1]#* }))
      _normal
      ;;
    words)
      for line in "${(@)answer[2,-1]}"; do
        word=${line%%$'\t'*}
        found+=("${word//:/\\:}:${line#*$'\t'}")
      done
      ((${#found})) && _describe -t words 'dtrain' found
      ;;
  esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _dtrain "$@"
else
  compdef _dtrain dtrain
fi
)";

constexpr char kFish[] = R"(# fish completion for dtrain; made by: dtrain completion fish
function __dtrain_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    set -l answer ($typed[1] completion words $typed[2..-1] "$current" 2>/dev/null)
    set -l begun (string replace -r '^(-[^=]*=)?.*$' '$1' -- "$current")
    set -l path (string replace -r '^-[^=]*=' '' -- "$current")
    switch "$answer[1]"
        case files
            __fish_complete_path "$path" | string replace -r '^' -- "$begun"
        case directories
            __fish_complete_directories "$path" '' | string replace -r '^' -- "$begun"
        case 'program *'
            set -l first (math (string replace 'program ' '' -- $answer[1]) + 1)
            set -l inner (string escape -- $typed[$first..-1])
            test (count $typed) -ge $first; or set inner
            complete -C (string join ' ' -- $inner "$current")
        case words
            printf '%s\n' $answer[2..-1]
    end
end
complete -c dtrain -f -a '(__dtrain_complete)'
)";

}  // namespace

absl::string_view CompletionScript(absl::string_view shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  if (shell == "fish") return kFish;
  return "";
}

}  // namespace dtrain::reference
