#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# write_reference.sh DTRAIN OUT: manual pages and completion, laid out as they are installed.
set -eu
dtrain=$1 out=$2
rm -rf "$out"
mkdir -p "$out/man1" "$out/man8" "$out/bash-completion/completions" "$out/zsh/vendor-completions" \
  "$out/fish/vendor_completions.d"
for page in $("$dtrain" man); do
  "$dtrain" man "$page" >"$out/man1/$page.1"
done
cp docs/man/*.1 "$out/man1"
cp docs/man/*.8 "$out/man8"
gzip -9n "$out"/man?/*
"$dtrain" completion bash >"$out/bash-completion/completions/dtrain"
"$dtrain" completion zsh >"$out/zsh/vendor-completions/_dtrain"
"$dtrain" completion fish >"$out/fish/vendor_completions.d/dtrain.fish"
touch "$out/written"
