#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs dtrain from its tarball for one user, or with --prefix for all; no root, no Python. A version lies in
# a folder of its own, PREFIX/lib/dtrain-releases/new.XXXXXX, and `current` beside it leads to the one in use: it
# is switched in one step, once a job has run from the new folder. PREFIX/bin and the others have links.
set -eu
umask 022
usage="usage: install.sh [--prefix DIR] [--from FILE|URL] [--signer FILE] [--uninstall]
  --prefix DIR      install there (default: \$HOME/.local)
  --from FILE|URL   the tarball (default: dtrain-*-linux-MACHINE.tar.gz beside this script); SHA256SUMS must be
                    beside it
  --signer FILE     refuse what was not signed with this public key of ssh's; SHA256SUMS.sig must be there, too
  --uninstall       remove what install.sh has put into the prefix"
fail() {
  echo "install.sh: $*" >&2
  exit 1
}

prefix=${HOME:+$HOME/.local} from='' signer='' remove=''
while [ $# -gt 0 ]; do
  case $1 in
    --prefix | --from | --signer)
      [ -n "${2:-}" ] || fail "$1 needs a value
$usage"
      case $1 in
        --prefix) prefix=$2 ;;
        --from) from=$2 ;;
        *) signer=$2 ;;
      esac
      shift ;;
    --uninstall) remove=yes ;;
    -h | --help) echo "$usage"; exit 0 ;;
    *) fail "unknown word $1
$usage" ;;
  esac
  shift
done
[ -n "$prefix" ] || fail "HOME is not set: say where with --prefix DIR"
case $prefix in
  /*) ;;
  *) prefix=$PWD/$prefix ;;
esac
releases=$prefix/lib/dtrain-releases
manifest=$releases/manifest

# remove_listed LIST KEEP: removes the files in LIST that KEEP lacks, and folders that are empty then.
remove_listed() {
  [ -f "$1" ] || return 0
  while IFS= read -r file; do
    if grep -qxF -e "$file" "$2"; then continue; fi
    rm -f "$prefix/$file"
    folder=$(dirname "$file")
    while [ "$folder" != . ] && rmdir "$prefix/$folder" 2>/dev/null; do folder=$(dirname "$folder"); done
  done <"$1"
}

if [ -n "$remove" ]; then
  [ -d "$releases" ] || fail "nothing to remove: there is no $releases"
  remove_listed "$manifest" /dev/null
  rm -rf "$releases"
  rmdir "$prefix/lib" 2>/dev/null || true
  echo "removed dtrain from $prefix"
  exit 0
fi

# Whether this machine can run it.
machine=$(uname -m)
[ "$(uname -s)" = Linux ] || fail "dtrain runs on Linux, and this is $(uname -s)"
case $machine in
  x86_64 | aarch64) ;;
  *) fail "there is no dtrain for $machine, only for x86_64 and aarch64" ;;
esac
# at_least VERSION WANTED: compares the first two numbers.
at_least() {
  major=${1%%.*} minor=${1#*.} minor=${minor%%[!0-9]*}
  [ "$major" -gt "${2%%.*}" ] || { [ "$major" -eq "${2%%.*}" ] && [ "${minor:-0}" -ge "${2#*.}" ]; }
}
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || true)
case $libc in
  glibc\ [0-9]*) at_least "${libc#glibc }" 2.28 || fail "this system has $libc, dtrain needs 2.28 or later" ;;
  *) fail "dtrain needs glibc 2.28 or later, and this system has another C library" ;;
esac
at_least "$(uname -r)" 4.18 || fail "this system has Linux $(uname -r), dtrain needs 4.18 or later"
for tool in tar gzip sha256sum mktemp ${signer:+ssh-keygen}; do
  command -v "$tool" >/dev/null || fail "$tool is missing: install it first"
done

mkdir -p "$releases" || fail "cannot make $releases: choose another place with --prefix DIR"
# One at a time, where there is a flock.
if command -v flock >/dev/null; then
  exec 9>"$releases/lock"
  flock -n 9 || fail "another install.sh is at work in $prefix"
fi
new=$(mktemp -d "$releases/new.XXXXXX") || fail "cannot write to $releases"
new_folder=$(basename "$new")
trap 'rm -rf "$new"; if [ ! -e "$releases/current" ]; then rm -rf "$releases"; rmdir "$prefix/lib" "$prefix" || true; fi 2>/dev/null' EXIT
trap 'exit 1' HUP INT TERM
chmod 755 "$new"

# The tarball and its checksum, where nobody else can change them after they were checked.
fetch() {
  if command -v curl >/dev/null; then
    curl -fsSL -o "$2" "$1"
  elif command -v wget >/dev/null; then
    wget -q -O "$2" "$1"
  else
    fail "neither curl nor wget is installed: download $1 yourself, and give the file with --from"
  fi
}
if [ -z "$from" ]; then
  for file in "$(dirname "$0")"/dtrain-*-linux-"$machine".tar.gz; do
    [ -e "$file" ] || fail "no dtrain-*-linux-$machine.tar.gz beside install.sh: say which with --from FILE|URL"
    [ -z "$from" ] || fail "several tarballs beside install.sh: say which with --from FILE"
    from=$file
  done
fi
name=$(basename "$from")
mkdir -m 700 "$new/download"
tarball=$new/download/$name
for one in "$name" SHA256SUMS ${signer:+SHA256SUMS.sig}; do
  case $from in
    http://* | https://*)
      file=${from%/*}/$one
      fetch "$file" "$new/download/$one" || fail "cannot download $file" ;;
    *)
      file=$(dirname "$from")/$one
      [ -f "$file" ] || fail "there is no file $file, which is needed to verify and install $name"
      cp "$file" "$new/download/$one" || fail "cannot copy $file to $new" ;;
  esac
done
sums=$new/download/SHA256SUMS
if [ -n "$signer" ]; then
  [ -f "$signer" ] || fail "there is no file $signer"
  sed 's/^/dtrain /' "$signer" >"$new/download/signers"
  ssh-keygen -Y verify -f "$new/download/signers" -I dtrain -n dtrain -s "$sums.sig" <"$sums" >/dev/null 2>&1 ||
    fail "SHA256SUMS of $from was not signed with the key in $signer, or was changed since"
fi
wanted=$(sed -n "s/^\([0-9a-f]\{64\}\)  $(echo "$name" | sed 's/[.[\*^$]/\\&/g')\$/\1/p" "$sums")
[ -n "$wanted" ] || fail "SHA256SUMS of $from does not list $name"
got=$(sha256sum <"$tarball" | cut -d ' ' -f 1)
[ "$got" = "$wanted" ] || fail "$name is damaged: its SHA-256 is $got, and SHA256SUMS says $wanted"
case $name in
  *-linux-"$machine".tar.gz) ;;
  *) fail "$name is not for this machine, which is $machine" ;;
esac

tree=$new/tree
mkdir "$tree"
gzip -dc <"$tarball" | tar -xf - --no-same-owner --strip-components=1 -C "$tree" || fail "cannot unpack $name into $new"
rm -rf "$new/download"
# Without this node's resident agent, which may run no jobs of root's.
DTRAIN_AGENT_STATE=none "$tree/bin/dtrain" launch -np 2 -- true 9>&- || fail "a test job failed (dtrain launch -np 2 -- true), so nothing was changed"

units="dtrain-agent.service dtrain-agent.socket dtrain-agent-root.service dtrain-spawner.service"
# What the prefix gets: links to the tree, and units, which name the programs by their full paths.
(cd "$tree" && find bin libexec lib/sysusers.d share/man share/bash-completion share/zsh share/fish lib/libdtrain.so* lib/pkgconfig -type f -o -type l) \
  | LC_ALL=C sort >"$new/links"
(cd "$tree" && find include/dtrain -type f) >>"$new/links"
{
  cat "$new/links"
  for unit in $units; do echo "lib/systemd/system/$unit"; done
  echo share/systemd/user/dtrain-agent.service
} >"$new/manifest"
touch "$manifest"
while IFS= read -r file; do
  if [ -e "$prefix/$file" ] || [ -L "$prefix/$file" ]; then
    grep -qxF -e "$file" "$manifest" ||
      fail "$prefix/$file is there and not from install.sh: remove it first (a package? pip uninstall dtrain?)"
  fi
done <"$new/manifest"

# From here on a second run mends what a kill leaves: the list names more files than there may be.
cat "$manifest" "$new/manifest" | LC_ALL=C sort -u >"$new/all"
mv -f "$new/all" "$manifest"
rm -f "$releases/current.new"
ln -s "$new_folder/tree" "$releases/current.new"
trap - EXIT
mv -fT "$releases/current.new" "$releases/current"
while IFS= read -r file; do
  mkdir -p "$prefix/$(dirname "$file")"
  up=$(dirname "$file" | sed 's|[^/]*|..|g')
  rm -f "$prefix/$file.dtrain-new"
  ln -s "$up/lib/dtrain-releases/current/$file" "$prefix/$file.dtrain-new"
  mv -fT "$prefix/$file.dtrain-new" "$prefix/$file"
done <"$new/links"
place_unit() {
  mkdir -p "$prefix/$(dirname "$2")"
  sed "s#/usr/bin/dtrain#$prefix/bin/dtrain#g; s#/usr/libexec/dtrain#$prefix/libexec/dtrain#g" "$tree/$1" >"$prefix/$2.dtrain-new"
  mv -f "$prefix/$2.dtrain-new" "$prefix/$2"
}
for unit in $units; do place_unit "lib/systemd/system/$unit" "lib/systemd/system/$unit"; done
place_unit lib/systemd/user/dtrain-agent.service share/systemd/user/dtrain-agent.service
# What an older version had, and older versions themselves. Jobs that run have their files open.
remove_listed "$manifest" "$new/manifest"
for old in "$releases"/new.*; do
  [ "$old" = "$new" ] || rm -rf "$old"
done
mv -f "$new/manifest" "$manifest"

echo "installed $("$prefix/bin/dtrain" --version) in $prefix"
case :${PATH:-}: in
  *:"$prefix/bin":*) ;;
  *) echo "add it to your PATH: export PATH=$prefix/bin:\$PATH" ;;
esac
