// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "launcher/transport/bootstrap.h"

namespace dtrain::transport {
namespace {

// POSIX sh with coreutils or busybox. The first lines are a gift to start-up files that ask for
// input: they get empty answers instead of our first command. Then the shell says that it reads us:
// whoever does not hear that knows that the login shell never came to run it. The script ends with
// the call and one line feed; nothing follows until we have answered, so a shell that reads ahead
// (dash) takes nothing that belongs to head or to the agent.
//
// The agent's line must stand at the beginning of a line, whatever was printed before without a
// line feed: hence the `echo` before it runs.
//
// A launcher that goes away while it sends closes our stdout too; SIGPIPE is ignored so that the
// file that came half is still removed.
//
// Its words: a flag of bridge or "-", and for each image machine, hash, size and dynamic loader.
// Where the loader of one image alone exists it is that one's machine: so nodes that have the agent
// start no uname.
//
// The trial file shows a mount without exec permission before megabytes are sent. `true >file`
// renews the time by which unused agents are removed; a redirection that fails must not end the
// shell, as it would with the special builtin `:`.
//
// The file `home` holds a random name, by which the launcher sees which nodes share this cache. It
// appears by a link, which only one of several nodes can make, and so is whole. Anything else of
// that name (a FIFO would block us) is left alone, and a name that is not ours is not sent.
//
// XDG_CACHE_HOME may be a folder of many users, where another one is first. So nothing below it is
// read or written before both of our directories are known to be our own: no links, and closed to
// what others would write. Of the agent's size and of permissions the shell knows nothing; one
// find looks at all of it. -perm with a mask at a time, as busybox knows it too.
//
// Before it looks again it changes the directory: so an NFS client drops what it had remembered of
// it, above all that there was no agent.
//
// Start-up files may leave a PATH without the system's folders. Then they come behind it, and the
// agent gets the PATH that was.
constexpr char kScript[] = R"sh(







begun() { printf '\nDTRAIN-AGENT/1 begun\n'; }; begun
dtrain() {
path=$PATH
command -v mkdir >/dev/null 2>&1 || PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
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
  PATH=$path
  echo
  exec "$agent" bridge $flag
}
flag=$1 new= machine=
shift
[ "$flag" != - ] || flag=
if [ $# -gt 4 ]; then
  images=$* found=
  while [ $# -ge 4 ]; do
    [ ! -e "$4" ] || found="$found $1 $2 $3 $4"
    shift 4
  done
  set -- $found
  if [ $# -ne 4 ]; then
    machine=$(uname -m) || fail notool "no uname in PATH ($PATH)"
    set -- $images
    while [ $# -gt 0 ] && [ "$1" != "$machine" ]; do shift 4; done
    [ $# -gt 0 ] || { say "need machine=$machine"; exit 1; }
  fi
  machine=$1
fi
hash=$2 size=$3
if [ -n "$XDG_CACHE_HOME" ]; then base=$XDG_CACHE_HOME/dtrain
elif [ -n "$HOME" ]; then base=$HOME/.cache/dtrain
else fail nohome "neither HOME nor XDG_CACHE_HOME is set"; fi
dir=$base/agent-$hash agent=$base/agent-$hash/dtrain-agent
own() { [ -O "$1" ] && [ -d "$1" ] && [ ! -L "$1" ]; }
mark() {
  [ -L "$dir/used" ] || { [ -e "$dir/used" ] && [ ! -f "$dir/used" ]; } || { true >"$dir/used"; } 2>/dev/null
}
look() {
  own "$base" && own "$dir" && [ -x "$agent" ] && [ -O "$agent" ] || return
  [ "$(find "$base" "$dir" "$agent" -prune ! -perm -020 ! -perm -002 \
    \( -type d -o -type f -size "${size}c" \) -print 2>/dev/null)" = "$base
$dir
$agent" ] || return
  mark
  run
}
look
for each in "$base" "$dir"; do
  [ -d "$each" ] || err=$(LC_ALL=C mkdir -p "$each" 2>&1) || why "make directory $each" "$err" nohome
  own "$each" || fail denied "$each is a link or does not belong to this user"
  err=$(LC_ALL=C chmod 700 "$each" 2>&1) || why "chmod $each" "$err" denied
done
for tool in head wc mv rm tr find sha256sum uname; do
  command -v "$tool" >/dev/null 2>&1 || fail notool "no $tool in PATH ($PATH)"
done
random=$(LC_ALL=C tr -dc a-f0-9 </dev/urandom | head -c 24)
new=$dir/new-$$-$random
trap 'rm -f "$new" "$new.try"' EXIT
trap 'exit 1' HUP INT TERM
trap '' PIPE
err=$( { printf '#!/bin/sh\nexit 0\n' >"$new.try"; } 2>&1) || why "write to $dir" "$err" write
err=$(LC_ALL=C chmod 700 "$new.try" 2>&1) || why "chmod $new.try" "$err" denied
err=$(LC_ALL=C "$new.try" 2>&1) || fail noexec "$dir is on a file system mounted without exec permission ($err)"
home=
if [ -n "$random" ] && [ ! -e "$base/home" ] && [ ! -L "$base/home" ]; then
  { rm -f "$new.try"; echo "$random" >"$new.try" && ln "$new.try" "$base/home"; } 2>/dev/null
fi
if [ -f "$base/home" ] && [ -O "$base/home" ]; then
  home=$(head -c 24 2>/dev/null <"$base/home")
  case $home in *[!a-f0-9]*) home= ;; esac
  [ ${#home} -eq 24 ] || home=
fi
rm -f "$new.try"
gzip=no
if command -v gzip >/dev/null 2>&1; then gzip=yes; fi
while :; do
  say "need machine=${machine:-$(uname -m)} gzip=$gzip${home:+ home=$home}"
  form= bytes=
  IFS=' ' read -r form bytes
  [ "$form" = look ] || break
  { true >"$new.try"; rm -f "$new.try"; } 2>/dev/null
  look
done
if [ "$form" = gzip ]; then
  err=$( { head -c "$bytes" | LC_ALL=C gzip -dc; } 2>&1 >"$new") || why "unpack the agent to $new" "$err" unpack
else
  err=$(LC_ALL=C head -c "${bytes:-0}" 2>&1 >"$new") || why "write $new" "$err" write
fi
got=$(wc -c <"$new")
[ "$got" -eq "$size" ] || fail short "got $got of $size bytes of the agent"
sum=$(sha256sum <"$new")
[ "${sum%% *}" = "$hash" ] || fail badhash "the agent that arrived has the hash ${sum%% *}, not $hash"
err=$(LC_ALL=C chmod 700 "$new" 2>&1) || why "chmod $new" "$err" denied
mark
err=$(LC_ALL=C mv -f "$new" "$agent" 2>&1) || why "rename $new" "$err" write
find "$base" -path "$base/agent-*/used" -mtime +30 2>/dev/null | while IFS= read -r used; do
  rm -rf "${used%/used}"
done
find "$dir" -name 'new-*' -mtime +1 -exec rm -f {} + 2>/dev/null
run
}
)sh";

}  // namespace

std::string BootstrapScript(const AgentImages& images, const std::string& bridge_flag) {
  std::string call = absl::StrCat(kScript, "dtrain ", bridge_flag.empty() ? "-" : bridge_flag);
  for (const AgentImage& image : images) {
    absl::StrAppend(&call, " ", image.machine.empty() ? "-" : image.machine, " ", image.sha256, " ",
                    image.size, " ", image.loader.empty() ? "-" : image.loader);
  }
  return call + "\n";
}

}  // namespace dtrain::transport
