// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "launcher/transport/bootstrap.h"

namespace dtrain::transport {
namespace {

// POSIX sh with coreutils or busybox. The first line is a gift to start-up files that ask for
// input: they get an empty answer instead of our first command. The script ends with the call and
// one line feed; nothing follows until we have answered, so a shell that reads ahead (dash) takes
// nothing that belongs to head or to the agent.
//
// The agent's line must stand at the beginning of a line, whatever was printed before without a
// line feed: hence the `echo` before it runs.
//
// A launcher that goes away while it sends closes our stdout too; SIGPIPE is ignored so that the
// file that came half is still removed.
//
// The trial file shows a mount without exec permission before megabytes are sent. `true >file`
// renews the time by which unused agents are removed; a redirection that fails must not end the
// shell, as it would with the special builtin `:`.
constexpr char kScript[] = R"sh(
dtrain() {
mask=$(umask)
umask 077
say() { printf '\nDTRAIN-AGENT/1 %s\n' "$*"; }
fail() {
  dtrain_code=$1; shift
  [ -z "$new" ] || rm -f "$new" "$new.try"
  say "error code=$dtrain_code reason=$(printf %.1500s "$*" | tr '\n\r' '  ')"
  exit 1
}
why() {
  case $2 in
    *"No space left"*|*"quota exceeded"*) fail nospace "$1: $2" ;;
    *"Read-only file system"*) fail readonly "$1: $2" ;;
    *"Permission denied"*) fail denied "$1: $2" ;;
    *) fail "$3" "$1: $2" ;;
  esac
}
run() {
  trap - EXIT HUP INT TERM PIPE
  umask "$mask"
  echo
  exec "$agent" bridge $resume
}
hash=$1 size=$2 resume=$3 new=
if [ -n "$XDG_CACHE_HOME" ]; then base=$XDG_CACHE_HOME/dtrain
elif [ -n "$HOME" ]; then base=$HOME/.cache/dtrain
else fail nohome "neither HOME nor XDG_CACHE_HOME is set"; fi
dir=$base/agent-$hash agent=$base/agent-$hash/dtrain-agent
if [ -x "$agent" ] && [ -O "$agent" ] && [ "$(wc -c <"$agent")" -eq "$size" ]; then
  { true >"$dir/used"; } 2>/dev/null
  run
fi
err=$(LC_ALL=C mkdir -p "$dir" 2>&1) || why "make directory $dir" "$err" nohome
[ -O "$dir" ] && [ -d "$dir" ] || fail denied "$dir does not belong to this user"
err=$(LC_ALL=C chmod 700 "$base" "$dir" 2>&1) || why "chmod $dir" "$err" denied
for tool in head wc mv rm tr find sha256sum uname; do
  command -v "$tool" >/dev/null 2>&1 || fail notool "no $tool in PATH ($PATH)"
done
new=$dir/new-$$-$(LC_ALL=C tr -dc a-f0-9 </dev/urandom | head -c 12)
trap 'rm -f "$new" "$new.try"' EXIT
trap 'exit 1' HUP INT TERM
trap '' PIPE
err=$( { printf '#!/bin/sh\nexit 0\n' >"$new.try"; } 2>&1) || why "write to $dir" "$err" write
err=$(LC_ALL=C chmod 700 "$new.try" 2>&1) || why "chmod $new.try" "$err" denied
err=$(LC_ALL=C "$new.try" 2>&1) || fail noexec "$dir is on a file system mounted without exec permission ($err)"
rm -f "$new.try"
say "need machine=$(uname -m)"
err=$(LC_ALL=C head -c "$size" 2>&1 >"$new") || why "write $new" "$err" write
got=$(wc -c <"$new")
[ "$got" -eq "$size" ] || fail short "got $got of $size bytes of the agent"
sum=$(sha256sum <"$new")
[ "${sum%% *}" = "$hash" ] || fail badhash "the agent that arrived has the hash ${sum%% *}, not $hash"
err=$(LC_ALL=C chmod 700 "$new" 2>&1) || why "chmod $new" "$err" denied
{ true >"$dir/used"; } 2>/dev/null
err=$(LC_ALL=C mv -f "$new" "$agent" 2>&1) || why "rename $new" "$err" write
find "$base" -path "$base/agent-*/used" -mtime +30 2>/dev/null | while IFS= read -r used; do
  rm -rf "${used%/used}"
done
find "$dir" -name 'new-*' -mtime +1 -exec rm -f {} + 2>/dev/null
run
}
)sh";

}  // namespace

std::string BootstrapScript(absl::string_view sha256, uint64_t size, bool resume) {
  return absl::StrCat(kScript, "dtrain ", sha256, " ", size, resume ? " --resume" : "", "\n");
}

}  // namespace dtrain::transport
