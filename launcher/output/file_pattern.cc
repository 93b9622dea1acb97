// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/file_pattern.h"

#include <algorithm>
#include <climits>
#include <filesystem>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"

namespace dtrain::output {
namespace {

constexpr absl::string_view kLetters = "rRlnhjas";
constexpr absl::string_view kAdvice =
    "use %r (rank), %R (padded), %l (local rank), %n (node), %h (host), %j (job), %a (attempt), "
    "%s (stream), %%";

std::string Padded(uint32_t number, size_t world_size) {
  std::string text = absl::StrCat(number);
  const size_t width = absl::StrCat(std::max<size_t>(world_size, 1) - 1).size();
  return absl::StrCat(std::string(width - std::min(width, text.size()), '0'), text);
}

bool IsPlainName(const std::string& host) {
  return !host.empty() && host[0] != '.' && host.find('/') == std::string::npos &&
         host.find('\0') == std::string::npos;
}

}  // namespace

absl::StatusOr<FilePattern> FilePattern::Parse(absl::string_view text) {
  FilePattern pattern;
  pattern.text_.assign(text.data(), text.size());
  pattern.pieces_.push_back({0, ""});
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' || (i + 1 < text.size() && text[i + 1] == '%')) {
      pattern.pieces_.back().text.push_back(text[i]);
      if (text[i] == '%') ++i;
      continue;
    }
    if (++i == text.size() || !absl::StrContains(kLetters, text[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", Escape(text.substr(i - 1, 2)), "\" is not a placeholder; ", kAdvice));
    }
    pattern.pieces_.push_back({text[i], ""});
    pattern.pieces_.push_back({0, ""});
  }
  const std::string& last = pattern.pieces_.back().text;
  const bool one_piece = pattern.pieces_.size() == 1;
  const std::string name = last.substr(last.rfind('/') + 1);  // npos + 1 is 0
  const bool begins_here = one_piece || absl::StrContains(last, '/');
  if (begins_here && (name.empty() || name == "." || name == "..")) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Escape(text, 100), "\" names a directory; add the name of a file"));
  }
  std::string& first = pattern.pieces_.front().text;
  const size_t slash = first.rfind('/');
  pattern.folder_ = slash == std::string::npos ? "." : slash == 0 ? "/" : first.substr(0, slash);
  if (slash != std::string::npos) first.erase(0, slash + 1);
  return pattern;
}

void FilePattern::SeenFrom(const std::string& directory) {
  folder_ = folder_ == "." ? directory : (std::filesystem::path(directory) / folder_).string();
}

bool FilePattern::HasStream() const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [](const Piece& piece) { return piece.letter == 's'; });
}

std::string FilePattern::LockName() const {
  std::string name = ".";
  for (const Piece& piece : pieces_) {
    if (piece.letter == 'j') return "";
    if (piece.letter != 0) absl::StrAppend(&name, "%", std::string(1, piece.letter));
    name += piece.text;
  }
  std::replace(name.begin(), name.end(), '/', '+');
  name += ".lock";
  return name.size() <= NAME_MAX ? name : "";
}

std::string FilePattern::Name(const Layout& layout, Rank rank, v1::StreamKind stream) const {
  DTRAIN_CHECK(rank.value() < layout.ranks.size());
  const Layout::Place& place = layout.ranks[rank.value()];
  std::string name;
  for (const Piece& piece : pieces_) {
    switch (piece.letter) {
      case 'r':
        absl::StrAppend(&name, rank.value());
        break;
      case 'R':
        name += Padded(rank.value(), layout.ranks.size());
        break;
      case 'l':
        absl::StrAppend(&name, place.local_rank);
        break;
      case 'n':
        absl::StrAppend(&name, place.node);
        break;
      case 'h':
        name += layout.hosts[place.node];
        break;
      case 'j':
        name += layout.job_id;
        break;
      case 'a':
        absl::StrAppend(&name, layout.attempt);
        break;
      case 's':
        name += stream == v1::STREAM_KIND_STDERR ? "stderr" : "stdout";
        break;
      default:
        name += piece.text;
    }
  }
  return name;
}

absl::Status FilePattern::Check(const Layout& layout) const {
  for (const std::string& host : layout.hosts) {
    if (IsPlainName(host)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--output: the host \"", Escape(host, 100),
                                                   "\" cannot be part of the name of a file"));
  }
  std::vector<v1::StreamKind> streams = {v1::STREAM_KIND_STDOUT};
  if (HasStream()) streams.push_back(v1::STREAM_KIND_STDERR);
  absl::flat_hash_map<std::string, uint32_t> writers;
  for (uint32_t rank = 0; rank < layout.ranks.size(); ++rank) {
    for (v1::StreamKind stream : streams) {
      const auto [writer, is_new] = writers.try_emplace(Name(layout, Rank(rank), stream), rank);
      if (is_new) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--output ", Escape(text_, 100), ": ranks ", writer->second, " and ", rank,
                       " would both write to ", Escape(folder_, 100), "/",
                       Escape(writer->first, 100), ": put %r, or %h-%l, into the name"));
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain::output
